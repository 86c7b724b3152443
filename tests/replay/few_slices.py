"""Batches with few slices, which have no model runs of their own: to be recorded like those in `batches`."""

from datetime import timedelta

from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.names import DISPATCH_QUEUE
from tests.replay.early_ends import Scenario, cancelled
from tests.workflows.house import DAY, POLICY, BatchHandle, House
from tests.workflows.steps import Belongs, fails, finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

WITHIN: BatchPolicy = POLICY.model_copy(update={"inline_slices": 16, "few_steps": True})


async def begun(house: House, window: timedelta = DAY) -> BatchHandle:
    return await house.start(await house.order(window, WITHIN))


async def begun_and_asked(house: House) -> BatchHandle:
    """Its two slices run until they are cancelled."""
    house.execution.behaviours["m"] = until_cancelled
    batch = await begun(house)
    await house.execution.asked(2)
    return batch


async def paused_and_resumed(house: House, batch: BatchHandle) -> None:
    """Until its end."""
    await batch.signal(BatchWorkflow.pause)
    house.execution.behaviours["m"] = finishes
    await batch.signal(BatchWorkflow.resume)
    await batch.result()


def one_fails_for_good(house: House) -> None:
    """Of two models; the other's slices run until they are cancelled."""
    house.ingestion.result = ingested(share("m"), share("n", 1))
    house.execution.behaviours = {"m": until_cancelled, "n": fails}


async def few_slices_completed(house: House) -> None:
    house.ingestion.result = ingested(share("m", 3), share("n", 1))
    await (await begun(house)).result()


async def few_slices_expired(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    await (await begun(house, timedelta(seconds=1))).result()


async def few_slices_cancelled(house: House) -> None:
    await cancelled(await begun_and_asked(house))


async def few_slices_paused(house: House) -> None:
    await paused_and_resumed(house, await begun_and_asked(house))


async def few_slices_failed(house: House) -> None:
    one_fails_for_good(house)
    await (await begun(house)).result()


async def few_slices_moved(house: House) -> None:
    house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    async with house.slices_at(DISPATCH_QUEUE):
        await (await begun(house)).result()


FEW_SLICES: tuple[Scenario, ...] = (
    few_slices_completed,
    few_slices_expired,
    few_slices_cancelled,
    few_slices_paused,
    few_slices_failed,
    few_slices_moved,
)
