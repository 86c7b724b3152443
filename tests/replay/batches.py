"""Scenarios whose workflow histories are recorded. Their names say what happens to the batch."""

import asyncio
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, ModelProgress, WaitingReason
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows.batch import BatchWorkflow
from tests.e2e.batches import until
from tests.replay.early_ends import BATCH, EARLY_ENDS, Scenario, cancelled
from tests.workflows.fixture import POLICY, BatchHandle, WorkflowFixture, state_of
from tests.workflows.stub_activities import (
    FINISHED,
    Belongs,
    fails,
    finishes,
    ingested,
    share,
    until_cancelled,
)


async def completed(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = ingested(share("m", 3), share("n", 1))
    await (await workflows.start()).result()


async def started_later(workflows: WorkflowFixture) -> None:
    """Pause and resume a batch before its start time. The start time must not change."""
    batch = await workflows.start(await workflows.later())
    await batch.signal(BatchWorkflow.pause)
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


async def expired(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    await (await workflows.start(await workflows.order(window=timedelta(seconds=1)))).result()


async def completed_at_its_deadline(workflows: WorkflowFixture) -> None:
    """Let the last lines get their results while the slices stop because of the deadline."""

    async def finishes_at_the_deadline(request: SliceRequest) -> SliceResult:
        await until_cancelled(request)
        return FINISHED

    workflows.execution.behaviours["m"] = finishes_at_the_deadline
    await (await workflows.start(await workflows.order(window=timedelta(seconds=1)))).result()


async def expired_while_validating(workflows: WorkflowFixture) -> None:
    await (await workflows.start(await workflows.order(window=timedelta(0)))).result()


async def cancelled_while_validating(workflows: WorkflowFixture) -> None:
    workflows.ingestion.released.clear()
    batch = await workflows.start()
    await workflows.ingestion.started.wait()
    await cancelled(batch)


async def cancelled_while_running(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(2)
    await cancelled(batch)


async def cancelled_while_finalizing(workflows: WorkflowFixture) -> None:
    workflows.finalization.released.clear()
    batch = await workflows.start()
    await workflows.finalization.started.wait()
    await cancelled(batch)


async def paused_and_resumed(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(2)
    await batch.signal(BatchWorkflow.pause)
    workflows.execution.behaviours["m"] = finishes
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


async def handed_over(workflows: WorkflowFixture) -> None:
    """Let a model run (the workflow for one model) hand slices over to another one.

    The first slice runs until all other slices have begun.
    """

    async def waits(request: SliceRequest) -> SliceResult:
        while len(workflows.execution.requests) < 5:
            activity.heartbeat()
            await asyncio.sleep(0.1)
        return FINISHED

    workflows.ingestion.result = ingested(share("m", 5))
    workflows.execution.behaviours[0] = waits
    policy: BatchPolicy = POLICY.model_copy(update={"hand_over_events": 20, "outstanding_slices": 2})
    await (await workflows.start(await workflows.order(policy=policy))).result()


async def failed_by_one_model(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = ingested(share("m"), share("n", 1))
    workflows.execution.behaviours = {"m": until_cancelled, "n": fails}
    await (await workflows.start()).result()


async def expired_at_its_cap(workflows: WorkflowFixture) -> None:
    """Let a slice find that the batch has reached the cap on its cost, while other slices run."""

    async def first_finds_it(request: SliceRequest) -> SliceResult:
        if request.number == 0:
            await workflows.execution.wait_for_requests(3)
            return SliceResult(over_cap=True, completed=3)
        return await until_cancelled(request)

    workflows.ingestion.result = ingested(share("m"), share("n", 1))
    workflows.execution.behaviours = {"m": first_finds_it, "n": until_cancelled}
    await (await workflows.start()).result()


async def moved_to_another_queue(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = ingested(share("m", 4))
    workflows.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    policy: BatchPolicy = POLICY.model_copy(update={"outstanding_slices": 2})
    async with workflows.slices_at(DISPATCH_QUEUE):
        await (await workflows.start(await workflows.order(policy=policy))).result()


# Pauses


async def paused_while_validating(workflows: WorkflowFixture) -> None:
    """Pause the batch during ingestion, so that its model run (the workflow for one model) begins paused."""
    batch = await _paused_in_ingestion(workflows)
    await until(lambda: _has_begun(batch))
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


async def expired_while_paused(workflows: WorkflowFixture) -> None:
    await (await _paused_in_ingestion(workflows)).result()


async def cancelled_while_paused(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(2)
    await batch.signal(BatchWorkflow.pause)
    await cancelled(batch)


async def cancelled_while_a_pause_waits(workflows: WorkflowFixture) -> None:
    """Pause a batch with a long history twice. Cancel it before its model run (the workflow for one model)
    gets the second pause.
    """
    workflows.execution.behaviours["m"] = until_cancelled
    policy: BatchPolicy = POLICY.model_copy(update={"max_change_events": 120})
    batch = await workflows.start(await workflows.order(policy=policy))
    await workflows.execution.wait_for_requests(2)
    await batch.signal(BatchWorkflow.pause)
    await workflows.execution.ended(2)
    await batch.signal(BatchWorkflow.resume)
    await workflows.execution.wait_for_requests(4)
    await batch.signal(BatchWorkflow.pause)
    await state_of(batch)  # a workflow task of its own
    await cancelled(batch)


# Signals, and hand-overs


async def waiting_reason_and_progress_reported(workflows: WorkflowFixture) -> None:
    """Let a slice be deferred because no backend accepts requests.

    Workers signal the waiting reason, and later the progress.
    """
    turns = 0

    async def second_turn(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise ApplicationError(
                "No backend accepts requests.",
                type=Failure.DEFERRED,
                next_retry_delay=timedelta(milliseconds=1),
            )
        return await until_cancelled(request) if request.number == 1 else FINISHED

    workflows.execution.behaviours["m"] = second_turn
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(3)
    await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m", reason="circuit open"))
    await batch.signal(BatchWorkflow.progress, ModelProgress(model="m", lines=20, slices=2, slices_done=1))
    await cancelled(batch)


async def progress_reported_by_a_model_run(workflows: WorkflowFixture) -> None:
    """Let a model run (the workflow for one model) last more than ten seconds. Then it signals its progress
    to the batch.
    """

    async def takes_long(request: SliceRequest) -> SliceResult:
        for _ in range(110):
            activity.heartbeat()
            await asyncio.sleep(0.1)
        return FINISHED

    workflows.ingestion.result = ingested(share("m", 4))
    workflows.execution.behaviours[0] = takes_long
    policy: BatchPolicy = POLICY.model_copy(update={"outstanding_slices": 1})
    await (await workflows.start(await workflows.order(policy=policy))).result()


async def handed_over_after_a_pause(workflows: WorkflowFixture) -> None:
    """Let a pause cancel all slices of a model run. After the resume, let it hand all of them over to another
    model run.
    """
    workflows.execution.behaviours["m"] = until_cancelled
    policy: BatchPolicy = POLICY.model_copy(update={"hand_over_events": 10})
    batch = await workflows.start(await workflows.order(policy=policy))
    await workflows.execution.wait_for_requests(2)
    await batch.signal(BatchWorkflow.pause)
    await workflows.execution.ended(2)
    workflows.execution.behaviours["m"] = finishes
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


# Which histories of a scenario are recorded: those that take a way which no other history takes.
WAYS: dict[Scenario, tuple[str, ...]] = {
    completed: (BATCH, "m"),
    started_later: (BATCH,),
    expired: (BATCH,),
    completed_at_its_deadline: (BATCH, "m"),
    expired_while_validating: (BATCH,),
    cancelled_while_validating: (BATCH,),
    cancelled_while_running: (BATCH, "m"),
    cancelled_while_finalizing: (BATCH,),
    paused_and_resumed: (BATCH, "m"),
    handed_over: (BATCH, "m", "m/2"),
    failed_by_one_model: (BATCH, "n"),
    expired_at_its_cap: (BATCH, "m"),
    moved_to_another_queue: ("m",),
    **EARLY_ENDS,
    paused_while_validating: (BATCH, "m"),
    expired_while_paused: (BATCH, "m"),
    cancelled_while_paused: (BATCH, "m"),
    cancelled_while_a_pause_waits: (BATCH,),
    waiting_reason_and_progress_reported: (BATCH,),
    progress_reported_by_a_model_run: (BATCH, "m"),
    handed_over_after_a_pause: (BATCH, "m", "m/2"),
}
SCENARIOS: dict[str, Scenario] = {scenario.__name__: scenario for scenario in WAYS}


async def _has_begun(batch: BatchHandle) -> bool:
    return (await state_of(batch)).status == BatchStatus.IN_PROGRESS


async def _paused_in_ingestion(workflows: WorkflowFixture) -> BatchHandle:
    workflows.ingestion.released.clear()
    batch = await workflows.start()
    await workflows.ingestion.started.wait()
    await batch.signal(BatchWorkflow.pause)
    workflows.ingestion.released.set()
    return batch
