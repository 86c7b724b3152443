"""Scenarios in which a batch ends early. Their histories are recorded like those in `batches`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from unittest import mock

from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.workflows import batch_files
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import POLICY, BatchHandle, WorkflowFixture
from tests.workflows.stub_activities import FINISHED, ingested, share, until_cancelled

Scenario = Callable[[WorkflowFixture], Awaitable[None]]
BATCH = "batch"  # the history of the batch itself; all others are named by the model of their run


async def cancelled(batch: BatchHandle) -> None:
    await batch.signal(BatchWorkflow.cancel)
    await batch.result()


# Ends before anything ran


async def rejected_input(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = IngestResult(failed=True, total=7, error_count=3)
    await (await workflows.start()).result()


async def no_model_is_served(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = IngestResult(ingest_prefix="ingest/1", total=5, unserved=5)
    await (await workflows.start()).result()


async def failed_in_ingestion(workflows: WorkflowFixture) -> None:
    workflows.ingestion.failure = ApplicationError("The input has vanished.", type=Failure.INPUT_VANISHED)
    await (await workflows.start()).result()


async def cancelled_before_its_first_task(workflows: WorkflowFixture) -> None:
    """Start a batch with a cancel signal. The signal is in the history before the first workflow task."""
    order = await workflows.order()
    batch = await workflows.client.start_workflow(
        BatchWorkflow.run, order, id=order.batch_id, task_queue=CONTROL_QUEUE, start_signal="cancel"
    )
    await batch.result()


async def cancelled_before_its_start(workflows: WorkflowFixture) -> None:
    await cancelled(await workflows.start(await workflows.later()))


async def cancelled_in_an_ingestion_that_does_not_end(workflows: WorkflowFixture) -> None:
    workflows.ingestion.released.clear()
    workflows.ingestion.deaf = True
    batch = await workflows.start()
    await workflows.ingestion.started.wait()
    await cancelled(batch)
    workflows.ingestion.released.set()


async def expired_in_ingestion(workflows: WorkflowFixture) -> None:
    """Let ingestion report that the completion window is over.

    The workflow's own clock is behind, so the window is not over for the workflow.
    """
    workflows.ingestion.result = ingested(share("m")).model_copy(update={"deadline_passed": True})
    await (await workflows.start()).result()


# Ends while slices are outstanding


async def cancelled_from_the_web_ui(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(2)
    await batch.cancel()
    await batch.result()


async def cancelled_with_slices_that_never_answer(workflows: WorkflowFixture) -> None:
    silent = asyncio.Event()

    async def ignores_everything(request: SliceRequest) -> SliceResult:
        while not silent.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await silent.wait()
        return FINISHED

    workflows.execution.behaviours["m"] = ignores_everything
    batch = await workflows.start()
    await workflows.execution.wait_for_requests(2)
    await cancelled(batch)
    silent.set()


async def cancelled_after_a_hand_over(workflows: WorkflowFixture) -> None:
    """Cancel a batch while two workflows of the same model have running slices, because one handed slices
    over to the other.
    """
    workflows.ingestion.result = ingested(share("m", 5))
    workflows.execution.behaviours = {0: until_cancelled, 4: until_cancelled}
    policy: BatchPolicy = POLICY.model_copy(update={"hand_over_events": 20, "outstanding_slices": 2})
    batch = await workflows.start(await workflows.order(policy=policy))
    await workflows.execution.wait_for_requests(5)
    await workflows.execution.ended(3)
    await cancelled(batch)


async def expired_by_its_slices(workflows: WorkflowFixture) -> None:
    """Let a slice end because the completion window is over by the clock of its worker.

    This clock is ahead of the workflow's clock.
    """

    async def closes(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    workflows.execution.behaviours[1] = closes
    await (await workflows.start()).result()


async def expired_without_a_worker_for_a_model(workflows: WorkflowFixture) -> None:
    workflows.ingestion.result = ingested(share("m"), share("nobodys"))
    await (await workflows.start(await workflows.order(window=timedelta(seconds=1)))).result()


# Ends


async def results_that_cannot_be_written(workflows: WorkflowFixture) -> None:
    workflows.finalization.failure = ApplicationError("Segment x is damaged.", type=Failure.RESULTS_DAMAGED)
    await (await workflows.start()).result()


# Ends before the files


async def expired_without_storage(workflows: WorkflowFixture) -> None:
    """Let a batch expire while storage is unavailable. A later attempt writes its files."""
    workflows.execution.behaviours["m"] = until_cancelled
    workflows.finalization.failures = 2
    await (await workflows.start(await workflows.order(window=timedelta(seconds=1)))).result()


async def expired_without_storage_for_good(workflows: WorkflowFixture) -> None:
    """Let a batch expire while storage is unavailable, until the workflow stops trying to write its files."""
    workflows.execution.behaviours["m"] = until_cancelled
    workflows.finalization.failure = ApplicationError("no disk", type=Failure.STORAGE_UNAVAILABLE)
    policy: BatchPolicy = POLICY.model_copy(update={"finalize_patience_seconds": 60})
    await (await workflows.start(await workflows.order(window=timedelta(seconds=1), policy=policy))).result()


async def cancelled_without_storage(workflows: WorkflowFixture) -> None:
    """Cancel a batch that has all results but cannot write its files, because storage is unavailable."""
    workflows.finalization.failure = ApplicationError("no disk", type=Failure.STORAGE_UNAVAILABLE)
    batch = await workflows.start()
    await workflows.finalization.started.wait()
    await batch.signal(BatchWorkflow.cancel)
    await workflows.lifecycle.ended.wait()
    workflows.finalization.failure = None
    await batch.result()


async def expired_in_an_ingestion_that_takes_too_long(workflows: WorkflowFixture) -> None:
    """Let a batch expire during ingestion.

    The batch gets its final status immediately. Its files are written when ingestion has ended.
    """
    workflows.ingestion.released.clear()
    with mock.patch.object(batch_files, "FILES_TIMEOUT", timedelta(seconds=1)):
        batch = await workflows.start(await workflows.order(window=timedelta(0)))
        await workflows.lifecycle.ended.wait()
    workflows.ingestion.released.set()
    await batch.result()


async def abandoned_while_finalizing(workflows: WorkflowFixture) -> None:
    workflows.finalization.released.clear()
    batch = await workflows.start()
    await workflows.finalization.started.wait()
    await batch.signal(BatchWorkflow.abandon)
    await batch.result()


async def expired_and_abandoned_without_storage(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    workflows.finalization.failure = ApplicationError("no disk", type=Failure.STORAGE_UNAVAILABLE)
    batch = await workflows.start(await workflows.order(window=timedelta(seconds=1)))
    await workflows.lifecycle.ended.wait()
    await batch.signal(BatchWorkflow.abandon)
    await batch.result()


async def expired_while_its_files_take_too_long(workflows: WorkflowFixture) -> None:
    workflows.execution.behaviours["m"] = until_cancelled
    workflows.finalization.silent.set()
    workflows.finalization.released.clear()
    with mock.patch.object(batch_files, "FILES_TIMEOUT", timedelta(seconds=1)):
        batch = await workflows.start(await workflows.order(window=timedelta(seconds=1)))
        await workflows.lifecycle.ended.wait()
    workflows.finalization.released.set()
    await batch.result()


EARLY_ENDS: dict[Scenario, tuple[str, ...]] = {
    rejected_input: (BATCH,),
    no_model_is_served: (BATCH,),
    failed_in_ingestion: (BATCH,),
    cancelled_before_its_first_task: (BATCH,),
    cancelled_before_its_start: (BATCH,),
    cancelled_in_an_ingestion_that_does_not_end: (BATCH,),
    expired_in_ingestion: (BATCH,),
    cancelled_from_the_web_ui: (BATCH,),
    cancelled_with_slices_that_never_answer: ("m",),
    cancelled_after_a_hand_over: (BATCH,),
    expired_by_its_slices: (BATCH, "m"),
    expired_without_a_worker_for_a_model: ("nobodys",),
    results_that_cannot_be_written: (BATCH,),
    expired_without_storage: (BATCH,),
    expired_without_storage_for_good: (BATCH,),
    cancelled_without_storage: (BATCH,),
    expired_in_an_ingestion_that_takes_too_long: (BATCH,),
    expired_while_its_files_take_too_long: (BATCH,),
    abandoned_while_finalizing: (BATCH,),
    expired_and_abandoned_without_storage: (BATCH,),
}
