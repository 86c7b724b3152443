"""Records the histories of `test_replay.py`: `python -m tests.replay.record [name ...]`.

Each name says what its history proves. Record anew only what a change broke on purpose, and only if no run
that began before the change can still be open; otherwise branch with `workflow.patched` and keep the old one.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.client import WorkflowFailureError, WorkflowHistory

from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.contracts.retention import Kind, RetentionOrder
from tests.workflows.house import POLICY, BatchHandle, House, time_skipping_server
from tests.workflows.steps import FOREIGN, Belongs, fails, finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

HISTORIES = Path(__file__).parent / "histories"
Scenario = Callable[[House], Awaitable[None]]


async def completed(house: House) -> None:
    house.ingestion.result = ingested(share("m", 3), share("n", 1))
    await (await house.start()).result()


async def expired(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    await (await house.start(await house.order(window=timedelta(seconds=1)))).result()


async def expired_while_validating(house: House) -> None:
    await (await house.start(await house.order(window=timedelta(0)))).result()


async def cancelled_while_validating(house: House) -> None:
    house.ingestion.released.clear()
    batch = await house.start()
    await house.ingestion.started.wait()
    await _cancelled(batch)


async def cancelled_while_running(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    batch = await house.start()
    await house.execution.asked(2)
    await _cancelled(batch)


async def cancelled_while_finalizing(house: House) -> None:
    house.finalization.released.clear()
    batch = await house.start()
    await house.finalization.started.wait()
    await _cancelled(batch)


async def paused_and_resumed(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    batch = await house.start()
    await house.execution.asked(2)
    await batch.signal(BatchWorkflow.pause)
    house.execution.behaviours["m"] = finishes
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


async def continued_as_new(house: House) -> None:
    house.ingestion.result = ingested(share("m", 12))
    policy: BatchPolicy = POLICY.model_copy(update={"continue_as_new_events": 20, "outstanding_slices": 2})
    await (await house.start(await house.order(policy=policy))).result()


async def failed_by_one_model(house: House) -> None:
    house.ingestion.result = ingested(share("m"), share("n", 1))
    house.execution.behaviours = {"m": until_cancelled, "n": fails}
    await (await house.start()).result()


async def moved_to_another_queue(house: House) -> None:
    house.ingestion.result = ingested(share("m", 4))
    house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    policy: BatchPolicy = POLICY.model_copy(update={"outstanding_slices": 2})
    async with house.slices_at(DISPATCH_QUEUE):
        await (await house.start(await house.order(policy=policy))).result()


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        completed,
        expired,
        expired_while_validating,
        cancelled_while_validating,
        cancelled_while_running,
        cancelled_while_finalizing,
        paused_and_resumed,
        continued_as_new,
        failed_by_one_model,
        moved_to_another_queue,
    )
}


async def everything_due(house: House) -> None:
    """Several turns of one kind, and one kind that is given up."""
    house.retention.turns[Kind.UPLOADS] = 3
    house.retention.failing[Kind.BATCHES] = FOREIGN
    with pytest.raises(WorkflowFailureError):
        await (await house.start_retention(RetentionOrder())).result()


async def continued_as_new_in_a_kind(house: House) -> None:
    house.retention.turns[Kind.FILES] = 5
    await (await house.start_retention(RetentionOrder(turns=3))).result()


RETENTION: dict[str, Scenario] = {
    scenario.__name__: scenario for scenario in (everything_due, continued_as_new_in_a_kind)
}


async def compared(house: House) -> None:
    house.auditing.failures = 1
    await house.audited()


AUDITS: dict[str, Scenario] = {compared.__name__: compared}


async def _cancelled(batch: BatchHandle) -> None:
    await batch.signal(BatchWorkflow.cancel)
    await batch.result()


async def _record(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers(["m", "n"]):
            await SCENARIOS[name](house)
            batch = await _write(house, "batch_1", None, f"batch_{name}")
            for child in _first_runs(batch):
                kind = f"model_run_{name}_{child.workflow_id.rpartition('/')[2]}"
                run = await _write(house, child.workflow_id, child.run_id, kind)
                if run.events[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
                    await _write(house, child.workflow_id, None, f"{kind}_last")


def _first_runs(batch: WorkflowHistory) -> list[WorkflowExecution]:
    return [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        for event in batch.events
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]


async def _write(house: House, workflow_id: str, run_id: str | None, name: str) -> WorkflowHistory:
    history = await house.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    (HISTORIES / f"{name}.json").write_text(_anonymous(history.to_json()) + "\n")
    return history


def _anonymous(text: str) -> str:
    text = re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', text)
    return re.sub(r'"identity": "[^"]*"', '"identity": "recorder"', text)


async def _record_retention(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await RETENTION[name](house)
            run = await _write(house, "retention", house.first_run, f"retention_{name}")
            if run.events[-1].HasField("workflow_execution_continued_as_new_event_attributes"):
                await _write(house, "retention", None, f"retention_{name}_last")


async def _record_audit(name: str) -> None:
    async with time_skipping_server() as environment:
        house = House(environment)
        async with house.workers():
            await AUDITS[name](house)
            await _write(house, "audit", None, f"audit_{name}")


async def _main(names: list[str]) -> None:
    recorders = {
        **dict.fromkeys(SCENARIOS, _record),
        **dict.fromkeys(RETENTION, _record_retention),
        **dict.fromkeys(AUDITS, _record_audit),
    }
    for name in names or recorders:
        await recorders[name](name)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
