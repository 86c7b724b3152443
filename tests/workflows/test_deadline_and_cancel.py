"""Deadline, cancel and pause at each point of a batch's life. As many lines as possible are settled."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows.batch import BatchWorkflow
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.workflows.fixture import RunHandle, WorkflowFixture, state_of
from tests.workflows.stub_activities import finishes, ingested, share, until_cancelled

pytestmark = pytest.mark.integration
SHORT = timedelta(seconds=1)  # while an activity is pending no time is skipped
LONG = timedelta(seconds=20)  # enough to come to the files on a busy machine
SLICES = 2


async def until_closed(fixture: WorkflowFixture, window_ends: float) -> None:
    clock = fixture.environment.get_current_time
    while (await clock()).timestamp() < window_ends:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("window", [timedelta(seconds=60), timedelta(hours=24), timedelta(days=14)])
async def test_the_deadline_of_any_window_is_kept(fixture: WorkflowFixture, window: timedelta) -> None:
    """The batch is paused, so that no activity is pending and days can be skipped."""
    fixture.ingestion.released.clear()
    order = await fixture.order(window=window)
    async with fixture.workers():
        batch = await fixture.start(order)
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        fixture.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED
        assert await fixture.environment.get_current_time() >= order.deadline
    assert fixture.execution.requests == []


async def test_a_deadline_without_any_worker_is_applied_as_soon_as_one_runs(
    fixture: WorkflowFixture,
) -> None:
    order = await fixture.order(window=SHORT)
    batch = await fixture.start(order)
    await until_closed(fixture, order.deadline.timestamp())
    async with fixture.workers():
        assert (await batch.result()).status == BatchStatus.EXPIRED
    assert fixture.execution.requests == []
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.EXPIRED]


async def test_an_ingestion_ended_by_the_deadline_expires_the_batch_even_if_the_clock_of_the_run_is_behind(
    fixture: WorkflowFixture,
) -> None:
    fixture.ingestion.result = ingested(share("m", 0)).model_copy(update={"deadline_passed": True})
    async with fixture.workers():
        assert (await (await fixture.start()).result()).status == BatchStatus.EXPIRED
    assert fixture.execution.requests == []
    assert [request.missing_line_code for request in fixture.finalization.requests] == [
        LineCode.BATCH_EXPIRED
    ]


async def test_files_that_are_written_past_the_deadline_complete_a_batch_that_ran_in_time(
    fixture: WorkflowFixture,
) -> None:
    fixture.finalization.released.clear()
    order = await fixture.order(window=LONG)
    async with fixture.workers():
        batch = await fixture.start(order)
        await fixture.finalization.started.wait()
        await until_closed(fixture, order.deadline.timestamp())
        fixture.finalization.released.set()
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.COMPLETED]


async def test_a_worker_whose_clock_is_behind_does_not_keep_the_batch_open(fixture: WorkflowFixture) -> None:
    """The slice would run for an hour. The workflow cancels it at the deadline, by the clock of Temporal's
    server.
    """
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=SHORT))
        assert (await batch.result()).status == BatchStatus.EXPIRED


async def test_the_deadline_ends_a_batch_with_unresponsive_slices_within_ten_seconds(
    fixture: WorkflowFixture,
) -> None:
    """The slices do not return, as if their worker had died. The model run (the workflow for one model) waits
    for them less than ten seconds.
    """
    released = asyncio.Event()

    async def deaf(request: SliceRequest) -> SliceResult:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return SliceResult()

    fixture.execution.behaviours["m"] = deaf
    order = await fixture.order(window=LONG, policy=BatchPolicy(heartbeat_timeout_seconds=120))
    async with fixture.workers():
        await fixture.start(order)
        run = fixture.client.get_workflow_handle_for(ModelRunWorkflow.run, f"{order.batch_id}/m")
        await fixture.execution.wait_for_requests(SLICES)
        while not (waits := await timers(run)):
            await asyncio.sleep(0.05)
        released.set()
    assert order.policy.expiry_grace_seconds < waits[0] < 10


async def timers(run: RunHandle) -> list[float]:
    """Return the seconds of all timers that the run has started."""
    events = [event.timer_started_event_attributes for event in (await run.fetch_history()).events]
    return [timer.start_to_fire_timeout.ToSeconds() for timer in events if timer.timer_id]


@pytest.mark.parametrize("settled", range(SLICES + 1))
async def test_a_cancel_ends_the_batch_with_nothing_some_or_all_of_it_settled(
    fixture: WorkflowFixture, settled: int
) -> None:
    """If all lines are settled, the cancel comes while the files are written."""
    for number in range(settled, SLICES):
        fixture.execution.behaviours[number] = until_cancelled
    fixture.finalization.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        if settled == SLICES:
            await fixture.finalization.started.wait()
        else:
            await fixture.execution.wait_for_requests(SLICES)
            await fixture.settled(slices=settled)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert fixture.finalization.requests[-1].status == BatchStatus.CANCELLED
    requested = [request.number for request in fixture.execution.requests]
    assert sorted(requested) == list(range(SLICES))  # nothing was sent again


async def test_concurrent_cancels_are_one_cancel(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(SLICES)
        await asyncio.gather(batch.cancel(), *(batch.signal(BatchWorkflow.cancel) for _ in range(5)))
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.CANCELLED]


async def test_a_cancel_waits_for_unresponsive_slices_no_longer_than_their_grace(
    fixture: WorkflowFixture,
) -> None:
    """The slice does not return, as if its worker were frozen. The batch continues without it."""

    async def deaf(request: SliceRequest) -> SliceResult:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return SliceResult()

    released = asyncio.Event()
    fixture.execution.behaviours["m"] = deaf
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(SLICES)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
        released.set()


async def test_a_pause_survives_the_loss_of_every_worker_and_a_resume_continues(
    fixture: WorkflowFixture,
) -> None:
    fixture.cached_workflows = 0
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(SLICES)
        await batch.signal(BatchWorkflow.pause)
        assert (await state_of(batch)).paused
        await fixture.execution.ended(SLICES)
    fixture.execution.behaviours["m"] = finishes
    async with fixture.workers():
        assert (await state_of(batch)).paused
        requested = len(fixture.execution.requests)
        assert (await state_of(batch)).status == BatchStatus.IN_PROGRESS
        assert len(fixture.execution.requests) == requested
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
