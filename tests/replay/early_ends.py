"""Batches that end early, in ways that other events tell: to be recorded like those in `batches`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio.exceptions import ApplicationError

from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.names import CONTROL_QUEUE
from tests.e2e.batches import until
from tests.workflows.house import POLICY, BatchHandle, House
from tests.workflows.steps import FINISHED, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

Scenario = Callable[[House], Awaitable[None]]


async def cancelled(batch: BatchHandle) -> None:
    await batch.signal(BatchWorkflow.cancel)
    await batch.result()


# Ends before anything ran


async def rejected_input(house: House) -> None:
    house.ingestion.result = IngestResult(failed=True, total=7, errors=3)
    await (await house.start()).result()


async def no_model_is_served(house: House) -> None:
    house.ingestion.result = IngestResult(prefix="ingest/1", total=5, unserved=5)
    await (await house.start()).result()


async def failed_in_ingestion(house: House) -> None:
    house.ingestion.failure = ApplicationError("The input has vanished.", type=Failure.INPUT_VANISHED)
    await (await house.start()).result()


async def cancelled_before_its_first_task(house: House) -> None:
    """The signal is in the history before the run has said anything."""
    order = await house.order()
    batch = await house.client.start_workflow(
        BatchWorkflow.run, order, id=order.batch_id, task_queue=CONTROL_QUEUE, start_signal="cancel"
    )
    await batch.result()


async def cancelled_in_an_ingestion_that_does_not_end(house: House) -> None:
    house.ingestion.released.clear()
    house.ingestion.deaf = True
    batch = await house.start()
    await house.ingestion.started.wait()
    await cancelled(batch)
    house.ingestion.released.set()


async def expired_in_ingestion(house: House) -> None:
    """It says that the window was over before all was planned, by a clock that is ahead of the run's."""
    house.ingestion.result = ingested(share("m")).model_copy(update={"closed": True})
    await (await house.start()).result()


# Ends while slices are outstanding


async def cancelled_from_the_web_ui(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    batch = await house.start()
    await house.execution.asked(2)
    await batch.cancel()
    await batch.result()


async def cancelled_with_slices_that_never_answer(house: House) -> None:
    silent = asyncio.Event()

    async def ignores_everything(request: SliceRequest) -> SliceResult:
        while not silent.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await silent.wait()
        return FINISHED

    house.execution.behaviours["m"] = ignores_everything
    batch = await house.start()
    await house.execution.asked(2)
    await cancelled(batch)
    silent.set()


async def cancelled_while_it_would_continue_as_new(house: House) -> None:
    """One slice goes on; the run waits for the end of its turn."""
    house.ingestion.result = ingested(share("m", 12))
    house.execution.behaviours[0] = until_cancelled
    policy: BatchPolicy = POLICY.model_copy(update={"continue_as_new_events": 20, "outstanding_slices": 2})
    batch = await house.start(await house.order(policy=policy))
    await house.execution.asked(3)
    run = house.client.get_workflow_handle(f"{batch.id}/m")

    async def waits() -> bool:
        events = (await run.fetch_history()).events
        return any(event.HasField("timer_started_event_attributes") for event in events)

    await until(waits)
    await cancelled(batch)


async def expired_by_its_slices(house: House) -> None:
    """They know the deadline themselves, and a worker's clock may be ahead."""

    async def closes(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    house.execution.behaviours[1] = closes
    await (await house.start()).result()


async def expired_without_a_worker_for_a_model(house: House) -> None:
    house.ingestion.result = ingested(share("m"), share("nobodys"))
    await (await house.start(await house.order(window=timedelta(seconds=1)))).result()


# Ends


async def results_that_cannot_be_written(house: House) -> None:
    house.finalization.failure = ApplicationError("Segment x is damaged.", type=Failure.RESULTS_DAMAGED)
    await (await house.start()).result()


async def finalization_tried_again(house: House) -> None:
    """Its storage was away for a moment."""
    house.finalization.failures = 1
    await (await house.start()).result()


EARLY_ENDS: tuple[Scenario, ...] = (
    rejected_input,
    no_model_is_served,
    failed_in_ingestion,
    cancelled_before_its_first_task,
    cancelled_in_an_ingestion_that_does_not_end,
    expired_in_ingestion,
    cancelled_from_the_web_ui,
    cancelled_with_slices_that_never_answer,
    cancelled_while_it_would_continue_as_new,
    expired_by_its_slices,
    expired_without_a_worker_for_a_model,
    results_that_cannot_be_written,
    finalization_tried_again,
)
