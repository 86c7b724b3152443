"""`python -m tests.replay.record [name ...]`: records the histories of `test_replay.py`.

Record a history again only if a change breaks it on purpose, and if no run from before the change can still
be open. Otherwise, branch with `workflow.patched` and keep the old history.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from temporalio.client import WorkflowFailureError

from batchwright.contracts.temporal_payloads.batch_schedules import ScheduledBatch
from batchwright.contracts.temporal_payloads.retention import RetentionKind, RetentionOrder
from batchwright.contracts.temporal_payloads.webhooks import DeliveryOrder
from tests.replay.batches import SCENARIOS
from tests.replay.on_a_server import PINNED, SCHEDULED, record_pinned, record_scheduled
from tests.replay.written import write_batch, write_runs
from tests.workflows.fixture import WorkflowFixture, time_skipping_server
from tests.workflows.stub_activities import FOREIGN

Scenario = Callable[[WorkflowFixture], Awaitable[None]]


async def everything_due(workflows: WorkflowFixture) -> None:
    """Run retention. The activity must be called three times for one kind of data, and fails permanently for
    another.
    """
    workflows.retention.turns[RetentionKind.UPLOADS] = 3
    workflows.retention.failing[RetentionKind.BATCHES] = FOREIGN
    with pytest.raises(WorkflowFailureError):
        await (await workflows.start_retention(RetentionOrder())).result()


async def continued_as_new_in_a_kind(workflows: WorkflowFixture) -> None:
    workflows.retention.turns[RetentionKind.FILES] = 5
    await (await workflows.start_retention(RetentionOrder(max_turns=3))).result()


async def cancelled(workflows: WorkflowFixture) -> None:
    workflows.retention.released.clear()
    run = await workflows.start_retention(RetentionOrder())
    await workflows.retention.started.wait()
    await run.cancel()
    with pytest.raises(WorkflowFailureError):
        await run.result()


RETENTION: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (everything_due, continued_as_new_in_a_kind, cancelled)
}


async def delivered_at_the_third_attempt(workflows: WorkflowFixture) -> None:
    workflows.webhooks.failures = 2
    await workflows.delivered(DeliveryOrder(tenant="acme", delivery_id="wh_1", endpoint_id="webhook_1"))


WEBHOOKS: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (delivered_at_the_third_attempt,)
}


async def created(workflows: WorkflowFixture) -> None:
    workflows.scheduling.result = ScheduledBatch(order=await workflows.order())
    await (await workflows.start_scheduled()).result()


async def refused(workflows: WorkflowFixture) -> None:
    workflows.scheduling.result = ScheduledBatch(code="file_not_found", refusal="It was deleted.")
    await (await workflows.start_scheduled()).result()


async def cancelled_with_its_batch(workflows: WorkflowFixture) -> None:
    workflows.scheduling.result = ScheduledBatch(order=await workflows.order())
    workflows.ingestion.released.clear()
    run = await workflows.start_scheduled()
    await workflows.ingestion.started.wait()
    await run.cancel()
    await run.result()


SCHEDULED_BATCHES: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (created, refused, cancelled_with_its_batch)
}


async def _record(name: str) -> None:
    async with time_skipping_server() as environment:
        workflows = WorkflowFixture(environment)
        async with workflows.workers(["m", "n"]):
            await SCENARIOS[name](workflows)
            await write_batch(workflows, SCENARIOS[name])


async def _record_retention(name: str) -> None:
    async with time_skipping_server() as environment:
        workflows = WorkflowFixture(environment)
        async with workflows.workers():
            await RETENTION[name](workflows)
            await write_runs(workflows, "retention", workflows.first_run, f"retention_{name}")


async def _record_webhook(name: str) -> None:
    async with time_skipping_server() as environment:
        workflows = WorkflowFixture(environment)
        async with workflows.workers():
            await WEBHOOKS[name](workflows)
            await write_runs(workflows, "wh_1", None, f"webhook_{name}")


async def _record_scheduled_batch(name: str) -> None:
    async with time_skipping_server() as environment:
        workflows = WorkflowFixture(environment)
        async with workflows.workers():
            await SCHEDULED_BATCHES[name](workflows)
            await write_runs(workflows, "schedule_1-2026", None, f"scheduled_batch_{name}")


async def _main(names: list[str]) -> None:
    recorders = {
        **dict.fromkeys(SCENARIOS, _record),
        **dict.fromkeys(RETENTION, _record_retention),
        **dict.fromkeys(WEBHOOKS, _record_webhook),
        **dict.fromkeys(SCHEDULED_BATCHES, _record_scheduled_batch),
        **dict.fromkeys(PINNED, record_pinned),
        **dict.fromkeys(SCHEDULED, record_scheduled),
    }
    for name in names or recorders:
        await recorders[name](name)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
