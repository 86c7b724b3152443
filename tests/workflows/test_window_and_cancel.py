"""The window, a cancel and a pause at each point of a batch's life, with as much settled as there can be."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.errors import LineCode
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.openai import BatchStatus
from tests.workflows.house import House, RunHandle, state_of
from tests.workflows.steps import finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow
from workflows.model_run import ModelRunWorkflow

pytestmark = pytest.mark.integration
SHORT = timedelta(seconds=1)  # while an activity is pending no time is skipped
LONG = timedelta(seconds=10)  # enough to come to the files on a busy machine
SLICES = 2


async def until_closed(house: House, window_ends: float) -> None:
    clock = house.environment.get_current_time
    while (await clock()).timestamp() < window_ends:  # noqa: ASYNC110 - another process's
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("window", [timedelta(seconds=60), timedelta(hours=24), timedelta(days=14)])
async def test_a_window_of_any_length_closes_when_it_is_over(house: House, window: timedelta) -> None:
    """Paused, so that nothing is pending and the days can be skipped."""
    house.ingestion.released.clear()
    order = await house.order(window=window)
    async with house.workers():
        batch = await house.start(order)
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        house.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED
        assert await house.environment.get_current_time() >= order.expires_at
    assert house.execution.requests == []


async def test_a_window_that_closes_before_any_worker_is_there_is_kept_as_soon_as_one_is(
    house: House,
) -> None:
    order = await house.order(window=SHORT)
    batch = await house.start(order)
    await until_closed(house, order.expires_at.timestamp())
    async with house.workers():
        assert (await batch.result()).status == BatchStatus.EXPIRED
    assert house.execution.requests == []
    assert [request.status for request in house.finalization.requests] == [BatchStatus.EXPIRED]


async def test_an_ingestion_that_the_window_cut_short_expires_the_batch_whatever_the_runs_own_clock_says(
    house: House,
) -> None:
    house.ingestion.result = ingested(share("m", 0)).model_copy(update={"closed": True})
    async with house.workers():
        assert (await (await house.start()).result()).status == BatchStatus.EXPIRED
    assert house.execution.requests == []
    assert [request.unsettled for request in house.finalization.requests] == [LineCode.BATCH_EXPIRED]


async def test_files_that_are_written_past_the_deadline_complete_a_batch_that_ran_in_time(
    house: House,
) -> None:
    house.finalization.released.clear()
    order = await house.order(window=LONG)
    async with house.workers():
        batch = await house.start(order)
        await house.finalization.started.wait()
        await until_closed(house, order.expires_at.timestamp())
        house.finalization.released.set()
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert [request.status for request in house.finalization.requests] == [BatchStatus.COMPLETED]


async def test_a_worker_whose_clock_is_behind_does_not_keep_the_batch_open(house: House) -> None:
    """It would go on for an hour: the run stops it when the server's clock says so."""
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await house.start(await house.order(window=SHORT))
        assert (await batch.result()).status == BatchStatus.EXPIRED


async def test_a_window_closes_on_slices_that_never_answer_within_ten_seconds(house: House) -> None:
    """As of a worker that is gone: so long the model run waits for them, where no grace is set."""
    released = asyncio.Event()

    async def deaf(request: SliceRequest) -> SliceResult:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return SliceResult()

    house.execution.behaviours["m"] = deaf
    order = await house.order(window=SHORT, policy=BatchPolicy())
    async with house.workers():
        await house.start(order)
        run = house.client.get_workflow_handle_for(ModelRunWorkflow.run, f"{order.batch_id}/m")
        await house.execution.asked(SLICES)
        while not (waits := await timers(run)):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.05)
        released.set()
    assert order.policy.expiry_grace_seconds < waits[0] < 10


async def timers(run: RunHandle) -> list[float]:
    """The seconds of all timers that the run has started."""
    events = [event.timer_started_event_attributes for event in (await run.fetch_history()).events]
    return [timer.start_to_fire_timeout.ToSeconds() for timer in events if timer.timer_id]


@pytest.mark.parametrize("settled", range(SLICES + 1))
async def test_a_cancel_ends_the_batch_with_nothing_some_or_all_of_it_settled(
    house: House, settled: int
) -> None:
    """With all of it settled, the cancel meets the files being written."""
    for number in range(settled, SLICES):
        house.execution.behaviours[number] = until_cancelled
    house.finalization.released.clear()
    async with house.workers():
        batch = await house.start()
        if settled == SLICES:
            await house.finalization.started.wait()
        else:
            await house.execution.asked(SLICES)
            await house.settled(slices=settled)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert house.finalization.requests[-1].status == BatchStatus.CANCELLED
    asked = [request.number for request in house.execution.requests]
    assert sorted(asked) == list(range(SLICES))  # nothing was sent again


async def test_cancels_at_the_same_moment_are_one(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.execution.asked(SLICES)
        await asyncio.gather(batch.cancel(), *(batch.signal(BatchWorkflow.cancel) for _ in range(5)))
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert [request.status for request in house.finalization.requests] == [BatchStatus.CANCELLED]


async def test_a_cancel_whose_slices_never_answer_waits_no_longer_than_their_grace(house: House) -> None:
    """As of a worker that is frozen: the batch goes on without it."""

    async def deaf(request: SliceRequest) -> SliceResult:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return SliceResult()

    released = asyncio.Event()
    house.execution.behaviours["m"] = deaf
    async with house.workers():
        batch = await house.start()
        await house.execution.asked(SLICES)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
        released.set()


async def test_a_pause_outlasts_every_worker_and_a_resume_after_their_return_goes_on(house: House) -> None:
    house.cached_workflows = 0
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.execution.asked(SLICES)
        await batch.signal(BatchWorkflow.pause)
        assert (await state_of(batch)).paused
        await house.execution.ended(SLICES)
    house.execution.behaviours["m"] = finishes
    async with house.workers():
        assert (await state_of(batch)).paused
        asked = len(house.execution.requests)
        assert (await state_of(batch)).status == BatchStatus.IN_PROGRESS
        assert len(house.execution.requests) == asked
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
