"""Ways through the workflows that are recorded, each named for what its history proves."""

import asyncio
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.contracts.batch import BatchPolicy, Chance, ModelProgress, Origin, WaitingReason
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.contracts.openai import BatchStatus
from tests.e2e.batches import until
from tests.replay.early_ends import EARLY_ENDS, Scenario, cancelled
from tests.replay.few_slices import FEW_SLICES
from tests.workflows.house import POLICY, BatchHandle, House, state_of
from tests.workflows.steps import FINISHED, Belongs, fails, finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow


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
    await cancelled(batch)


async def cancelled_while_running(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    batch = await house.start()
    await house.execution.asked(2)
    await cancelled(batch)


async def cancelled_while_finalizing(house: House) -> None:
    house.finalization.released.clear()
    batch = await house.start()
    await house.finalization.started.wait()
    await cancelled(batch)


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


# Pauses


async def paused_while_validating(house: House) -> None:
    """Its model run begins paused."""
    batch = await _paused_in_ingestion(house)
    await until(lambda: _has_begun(batch))
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


async def expired_while_paused(house: House) -> None:
    await (await _paused_in_ingestion(house)).result()


async def cancelled_while_paused(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    batch = await house.start()
    await house.execution.asked(2)
    await batch.signal(BatchWorkflow.pause)
    await cancelled(batch)


# On the way


async def put_off_and_told(house: House) -> None:
    """A backend that takes nothing: a turn is put off, the batch hears why, and of progress."""
    turns = 0

    async def second_turn(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise ApplicationError(
                "Nothing is taken.", type=Failure.DEFERRED, next_retry_delay=timedelta(milliseconds=1)
            )
        return await until_cancelled(request) if request.number == 1 else FINISHED

    house.execution.behaviours["m"] = second_turn
    batch = await house.start()
    await house.execution.asked(3)
    await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m", reason="circuit open"))
    await batch.signal(BatchWorkflow.progress, ModelProgress(model="m", lines=20, slices=2, slices_done=1))
    await cancelled(batch)


async def told_of_progress(house: House) -> None:
    """A model run that takes longer than ten seconds tells its batch."""

    async def takes_long(request: SliceRequest) -> SliceResult:
        for _ in range(110):
            activity.heartbeat()
            await asyncio.sleep(0.1)
        return FINISHED

    house.ingestion.result = ingested(share("m", 4))
    house.execution.behaviours[0] = takes_long
    policy: BatchPolicy = POLICY.model_copy(update={"outstanding_slices": 1})
    await (await house.start(await house.order(policy=policy))).result()


async def continued_as_new_with_a_slice_cut_short(house: House) -> None:
    """It outlasts its turn, is taken back and goes on in the next run."""
    turns = 0

    async def once_until_cancelled(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        return await (until_cancelled(request) if turns == 1 else finishes(request))

    house.ingestion.result = ingested(share("m", 8))
    house.execution.behaviours[0] = once_until_cancelled
    changes = {"continue_as_new_events": 20, "outstanding_slices": 2, "slice_seconds": 1}
    policy: BatchPolicy = POLICY.model_copy(update=changes)
    await (await house.start(await house.order(policy=policy))).result()


# Second chances


async def resumed_from_another(house: House) -> None:
    await _made_of_another(house, Chance.RESUME)


async def retried_from_another(house: House) -> None:
    await _made_of_another(house, Chance.RETRY)


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
        *EARLY_ENDS,
        *FEW_SLICES,
        paused_while_validating,
        expired_while_paused,
        cancelled_while_paused,
        put_off_and_told,
        told_of_progress,
        continued_as_new_with_a_slice_cut_short,
        resumed_from_another,
        retried_from_another,
    )
}


async def _has_begun(batch: BatchHandle) -> bool:
    return (await state_of(batch)).status == BatchStatus.IN_PROGRESS


async def _made_of_another(house: House, chance: Chance) -> None:
    order = await house.order()
    origin = Origin(batch_id="batch_0", chance=chance)
    await (await house.start(order.model_copy(update={"origin": origin}))).result()


async def _paused_in_ingestion(house: House) -> BatchHandle:
    house.ingestion.released.clear()
    batch = await house.start()
    await house.ingestion.started.wait()
    await batch.signal(BatchWorkflow.pause)
    house.ingestion.released.set()
    return batch
