"""Jobs that run when their batch reaches its deadline, is cancelled or is paused.

Results that come in time count, later ones do not.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.activity import ActivityCancellationDetails

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import BatchSpending
from batchwright.rules.results.segment_format import RecordKind
from batchwright.rules.token_costs import amount_of
from tests.activities.execution.backend_jobs.job_server import CallingServer, JobServer, config_of, done
from tests.activities.execution.fixture import BATCH, TENANT, eventually, request

pytestmark = pytest.mark.usefixtures("skipped_waits")

GRACE = 60.0
TOMORROW = datetime.now(UTC) + timedelta(days=1)


class Clock:
    """A clock for deadlines and grace periods. The test decides when a deadline or a grace period is over."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.is_stopping = False

    def time(self) -> float:
        return time.time() + self.passed

    def monotonic(self) -> float:
        self.is_stopping = True
        return time.monotonic() + self.passed

    def close_window(self) -> None:
        self.passed = TOMORROW.timestamp() - time.time() + 1

    def end_grace(self) -> None:
        self.passed += 2 * GRACE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("batchwright.activities.execution.slice_stop_signal.time", clock)
    return clock


def a_slice() -> SliceRequest:
    return request(deadline=TOMORROW, expiry_grace_seconds=GRACE, cancel_grace_seconds=GRACE)


def request_stop(server: JobServer) -> None:
    """Request a stop of the slice. For the slice, a cancel and a pause of the batch look the same."""
    server.execution.environment.cancel(
        cancellation_details=ActivityCancellationDetails(cancel_requested=True)
    )


async def looked(server: CallingServer, running: "asyncio.Task[SliceResult]") -> SliceResult:
    while not running.done():
        await server.poll_callbacks()
        await asyncio.sleep(0.01)
    return running.result()


async def test_a_job_that_ends_within_the_grace_after_the_deadline_counts(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(2)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.polls) == 2)
    clock.close_window()
    server.statuses[1] = done("in time")
    await eventually(lambda: server.execution.context.permits.used == 1)
    clock.end_grace()
    assert await running == SliceResult(completed=1)
    assert server.cancelled == ["job-2"]
    assert len(await server.execution.settled()) == 1


async def test_a_job_that_runs_past_the_deadline_settles_nothing_and_is_cancelled(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.polls) == 1)
    clock.close_window()
    clock.end_grace()
    assert await running == SliceResult()
    assert server.cancelled == ["job-1"]
    assert await server.execution.settled() == {}
    assert server.execution.context.permits.used == 0


def cap_cost(server: JobServer, cap: str) -> None:
    key = BatchKey(TENANT, BATCH)
    server.execution.progress.caps[key] = BatchSpending(amount_of(cap), 0)


async def test_running_jobs_are_cancelled_after_the_grace_at_the_cap_on_the_cost(clock: Clock) -> None:
    server = JobServer(config_of())
    cap_cost(server, "1")
    await server.plan(2)
    running = server.execution.start(a_slice().model_copy(update={"prices": PriceConfig(request="1")}))
    await eventually(lambda: len(server.polls) == 2)
    clock.is_stopping = False
    server.statuses[1] = done("reaches the cap")
    await eventually(lambda: server.execution.context.permits.used == 1)
    await server.execution.context.costs.refresh()
    await eventually(lambda: clock.is_stopping)
    clock.end_grace()
    assert await running == SliceResult(over_cap=True, completed=1)
    assert server.cancelled == ["job-2"]


async def test_a_slice_cancelled_because_another_found_the_cap_cancels_its_jobs(clock: Clock) -> None:
    """Another slice found that the batch has reached the cap on its cost. No user has cancelled the batch."""

    async def is_cancelled(tenant: str, batch_id: str) -> bool:
        return False

    server = JobServer(config_of())
    server.execution.context.is_cancelled = is_cancelled
    cap_cost(server, "1")
    await server.plan(1)
    running = server.execution.start(a_slice().model_copy(update={"prices": PriceConfig(request="1")}))
    await eventually(lambda: len(server.polls) == 1)
    request_stop(server)
    await eventually(lambda: clock.is_stopping)
    server.execution.progress.caps[BatchKey(TENANT, BATCH)] = BatchSpending(amount_of("1"), amount_of("1"))
    await server.execution.context.costs.refresh()
    clock.end_grace()
    assert await running == SliceResult()
    assert server.cancelled == ["job-1"]


async def test_a_job_result_after_the_deadline_is_not_written(clock: Clock) -> None:
    """The line has ended as `batch_expired` before the result comes, and must not get a second result."""
    server = CallingServer()
    await server.plan(1)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    clock.close_window()
    clock.end_grace()
    assert await running == SliceResult()
    stored = dict(server.execution.storage.objects)
    await server.call(0, b'{"result":{"echo":"late"}}')
    server.execution.next_attempt()
    assert await server.execution.run(a_slice()) == SliceResult()
    assert {key: data for key, data in server.execution.storage.objects.items() if key in stored} == stored
    assert await server.execution.settled() == {}
    assert len(server.submits) == 1


async def test_a_callback_within_the_grace_of_a_cancel_counts(clock: Clock) -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    request_stop(server)
    await server.call(0, b'{"result":{"echo":"in time"}}')
    assert await looked(server, running) == SliceResult(finished=True, completed=1)


async def test_a_pause_keeps_a_job_that_cannot_be_cancelled_and_its_callback_counts_afterwards(
    clock: Clock,
) -> None:
    server = CallingServer()
    await server.plan(1)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.submits) == 1)
    request_stop(server)
    await eventually(lambda: clock.is_stopping)
    clock.end_grace()
    assert await running == SliceResult()
    assert (await server.kinds())[RecordKind.SUBMITTED] == 1
    await server.call(0, b'{"result":{"echo":"meanwhile"}}')
    clock.passed = 0.0
    server.execution.next_attempt()
    assert await looked(server, server.execution.start(a_slice())) == SliceResult(finished=True, completed=1)
    assert len(server.submits) == 1


async def test_a_cancel_cancels_the_job_and_a_later_job_gets_another_key(clock: Clock) -> None:
    server = JobServer(config_of())
    await server.plan(1)
    running = server.execution.start(a_slice())
    await eventually(lambda: len(server.polls) == 1)
    request_stop(server)
    await eventually(lambda: clock.is_stopping)
    clock.end_grace()
    assert await running == SliceResult()
    assert server.cancelled == ["job-1"]
    clock.passed = 0.0
    server.every_status = done()
    server.execution.next_attempt()
    assert await server.execution.run(a_slice()) == SliceResult(finished=True, completed=1)
    assert len(set(server.keys)) == 2
