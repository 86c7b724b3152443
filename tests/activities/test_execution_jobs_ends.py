"""Jobs when the window closes, or a batch is cancelled or paused: what counts, and what comes too late."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.activity import ActivityCancellationDetails

from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.rules.segments import Kind
from tests.activities.execution_house import eventually, request
from tests.activities.job_server import CallingServer, JobServer, config_of, done

pytestmark = pytest.mark.usefixtures("skipped_waits")

GRACE = 60.0
IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)


class Clock:
    """Of windows and graces alone: they pass when a test says so."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.is_stopping = False

    def time(self) -> float:
        return time.time() + self.passed

    def monotonic(self) -> float:
        self.is_stopping = True
        return time.monotonic() + self.passed

    def close_window(self) -> None:
        self.passed = IN_AN_HOUR.timestamp() - time.time() + 1

    def end_grace(self) -> None:
        self.passed += 2 * GRACE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("activities.slices.ends.time", clock)
    return clock


def a_slice() -> SliceRequest:
    return request(closes_at=IN_AN_HOUR, expiry_grace_seconds=GRACE, cancel_grace_seconds=GRACE)


def ask_to_stop(server: JobServer) -> None:
    """A cancel and a pause look the same to a slice."""
    server.house.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))


async def looked(server: CallingServer, running: "asyncio.Task[SliceResult]") -> SliceResult:
    while not running.done():
        await server.look()
        await asyncio.sleep(0.01)
    return running.result()


async def test_a_job_that_ends_within_the_grace_of_the_window_counts(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(2)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.looks) == 2)
    clock.close_window()
    server.says[1] = done("in time")
    await eventually(lambda: server.house.tools.permits.used == 1)
    clock.end_grace()
    assert await running == SliceResult(completed=1)
    assert server.cancelled == ["job-2"]
    assert len(await server.house.settled()) == 1


async def test_a_job_that_runs_when_the_window_is_over_settles_nothing_and_is_given_up(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.looks) == 1)
    clock.close_window()
    clock.end_grace()
    assert await running == SliceResult()
    assert server.cancelled == ["job-1"]
    assert await server.house.settled() == {}
    assert server.house.tools.permits.used == 0


async def test_its_result_that_comes_later_is_written_nowhere(clock: Clock) -> None:
    """The line is `batch_expired` by then; a second result of it would be one too many."""
    server = CallingServer()
    await server.plan(1)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    clock.close_window()
    clock.end_grace()
    assert await running == SliceResult()
    stored = dict(server.house.storage.objects)
    await server.call(0, b'{"result":{"echo":"late"}}')
    server.house.next_attempt()
    assert await server.house.run(a_slice()) == SliceResult()
    assert {key: data for key, data in server.house.storage.objects.items() if key in stored} == stored
    assert await server.house.settled() == {}
    assert len(server.submits) == 1


async def test_a_call_within_the_grace_of_a_cancel_counts(clock: Clock) -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    ask_to_stop(server)
    await server.call(0, b'{"result":{"echo":"in time"}}')
    assert await looked(server, running) == SliceResult(finished=True, completed=1)


async def test_a_pause_keeps_a_job_that_cannot_be_given_up_and_its_call_counts_afterwards(
    clock: Clock,
) -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    ask_to_stop(server)
    await eventually(lambda: clock.is_stopping)
    clock.end_grace()
    assert await running == SliceResult()
    assert (await server.kinds())[Kind.SUBMITTED] == 1
    await server.call(0, b'{"result":{"echo":"meanwhile"}}')
    clock.passed = 0.0
    server.house.next_attempt()
    assert await looked(server, server.house.start(a_slice())) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_cancel_gives_a_job_up_and_one_after_it_would_have_another_key(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.house.start(a_slice())
    await eventually(lambda: len(server.looks) == 1)
    ask_to_stop(server)
    await eventually(lambda: clock.is_stopping)
    clock.end_grace()
    assert await running == SliceResult()
    assert server.cancelled == ["job-1"]
    clock.passed = 0.0
    server.says_all = done()
    server.house.next_attempt()
    assert await server.house.run(a_slice()) == SliceResult(finished=True, completed=1)
    assert len(set(server.keys)) == 2
