"""Lines that crash workers are found, and no other line loses its result."""

import asyncio
import json

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.line_quarantine import (
    MAX_LINE_CRASHES,
    MAX_PREPARATION_CRASHES,
    TRACKED_BATCH_SIZE,
    AttemptHistory,
    attempt_history,
)
from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceRequest, SliceResult
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from tests.activities.execution.fixture import (
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.permit_requests import PermitWaiter

POISON = "7"
LINES = 40
SHARD = object_keys.shard(request().ingest_prefix, MODEL)


class CrashingWorker(ExecutionFixture):
    """A fixture whose worker crashes when it sends the poison line. After the crash, it stores nothing."""

    def __init__(self, poison: str = POISON, **settings: object) -> None:
        super().__init__(ok, **settings)
        self.poison = poison
        self.answer = self.dies
        self.deaths = 0

    async def dies(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == self.poison:
            self.deaths += 1
            # Nobody asked for it: the attempt may write nothing more.
            self.environment.cancel(cancellation_details=ActivityCancellationDetails(timed_out=True))
            await asyncio.Event().wait()
        return ok(content_of(sent))

    async def until_finished(self, request: SliceRequest) -> None:
        """Run one attempt after the other, as Temporal starts them, until the slice is finished."""
        for _ in range(20):
            if await self._result(request):
                return
            self.next_worker()
        raise AssertionError("worker after worker died")

    async def _result(self, request: SliceRequest) -> bool:
        task = self.start(request)
        await asyncio.wait([task])
        error = task.exception()
        assert error is None or getattr(error, "type", "") == Failure.OWNERSHIP_LOST, error
        return error is None and task.result().finished


async def test_a_line_that_crashes_its_worker_is_given_up_and_every_other_line_is_answered() -> None:
    worker = CrashingWorker()
    offsets = await plan_slice(worker.storage, [line_of(n) for n in range(LINES)])
    await worker.until_finished(request())
    settled = await worker.settled()
    assert settled.keys() == set(offsets)
    failed = [json.loads(record.payload) for record in settled.values() if not record.success]
    assert [(line["custom_id"], line["error"]["code"]) for line in failed] == [
        (f"c-{POISON}", "worker_crashed")
    ]
    assert worker.deaths == 2 + MAX_LINE_CRASHES
    assert worker.sent.count(POISON) == worker.deaths


async def test_a_line_that_an_earlier_attempt_recorded_without_a_crash_is_found_when_it_crashes() -> None:
    worker = CrashingWorker()
    offsets = await plan_slice(worker.storage, [line_of(n) for n in range(LINES)])
    recorded = LineAttempt(sending_attempt="0/3").model_dump_json().encode()
    await worker.store(*[SegmentRecord(RecordKind.ATTEMPT, offset, recorded) for offset in offsets])
    await worker.until_finished(request(generation=1))
    settled = await worker.settled()
    assert [offset for offset, record in settled.items() if not record.success] == [offsets[int(POISON)]]
    assert worker.deaths == 2 + MAX_LINE_CRASHES


async def test_a_line_is_found_even_if_other_attempts_crash_before_their_first_heartbeat() -> None:
    worker = CrashingWorker()
    offsets = await plan_slice(worker.storage, [line_of(n) for n in range(LINES)])
    for _ in range(1 + MAX_LINE_CRASHES):
        assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
        worker.next_worker()
        worker.next_worker()  # after an attempt that has sent no heartbeat
    assert (await worker.run(request())).finished
    settled = await worker.settled()
    assert [offset for offset, record in settled.items() if not record.success] == [offsets[int(POISON)]]
    assert worker.deaths == 1 + MAX_LINE_CRASHES


async def test_a_quarantined_line_is_sent_with_no_other_request_in_flight() -> None:
    """While a worker sends a quarantined line (a line that may have crashed workers), it holds a lock.
    Neither another line of this slice nor a quarantined line of another slice is in flight.
    """
    worker = CrashingWorker()
    in_flight, at_death, is_locked = 0, list[int](), list[bool]()

    async def counted(sent: httpx.Request) -> httpx.Response:
        nonlocal in_flight
        in_flight += 1
        try:
            if content_of(sent) == POISON:
                at_death.append(in_flight)
                await asyncio.sleep(0)
                is_locked.append(worker.context.quarantine_lock.locked())
                return await worker.dies(sent)
            await asyncio.sleep(0)
            return ok(content_of(sent))
        finally:
            in_flight -= 1

    worker.answer = counted
    await plan_slice(worker.storage, [line_of(n) for n in range(LINES)])
    await worker.until_finished(request())
    assert at_death[2] <= TRACKED_BATCH_SIZE
    assert at_death[3:] == [1] * (MAX_LINE_CRASHES - 1)
    assert is_locked[3:] == [True] * (MAX_LINE_CRASHES - 1)


async def check_stop_while_locked(worker: ExecutionFixture) -> None:
    """Check that an attempt which waits for the process's quarantine lock holds no memory, and ends when it
    is cancelled.
    """
    async with worker.context.quarantine_lock:
        running = worker.start(request())
        await asyncio.sleep(10)
        assert (running.done(), worker.context.budget.held) == (False, 0)
        stopped = ActivityCancellationDetails(cancel_requested=True)
        worker.environment.cancel(cancellation_details=stopped)
        assert not (await asyncio.wait_for(running, 1)).finished


@pytest.mark.usefixtures("skipped_waits")
async def test_only_quarantined_lines_wait_for_the_quarantined_line_of_another_slice() -> None:
    """The crashes came after the lines were read, so reading them is harmless."""
    worker = CrashingWorker()
    offsets = await plan_slice(worker.storage, [line_of(n) for n in range(LINES)])
    for _ in range(3):
        assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
        worker.next_worker()
    suspects = 1 + TRACKED_BATCH_SIZE  # the poison line, and the lines that were recorded after it
    async with worker.context.quarantine_lock:
        running = worker.start(request())
        await asyncio.sleep(10)
        assert (running.done(), worker.deaths) == (False, 3)
        assert len(await worker.settled()) == len(offsets) - suspects
        worker.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
        assert not (await asyncio.wait_for(running, 1)).finished


@pytest.mark.usefixtures("skipped_waits")
async def test_a_quarantined_line_without_a_permit_leaves_the_lock_to_other_quarantined_work() -> None:
    worker = CrashingWorker(model_in_flight=1)
    await plan_slice(worker.storage, [line_of(int(POISON))])
    for _ in range(3):
        assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
        worker.next_worker()
    worker.poison = ""
    other = PermitWaiter(worker.context.permits, MODEL, TENANT, batch="another")
    lock, running = worker.context.quarantine_lock, worker.start(request())
    for _ in range(2):
        await eventually(lock.locked)
        await asyncio.wait_for(lock.acquire(), 10)
        lock.release()
    other.permit.release()
    assert (await running).finished
    assert all(record.success for record in (await worker.settled()).values())


class CrashingPreparation(ExecutionFixture):
    """A fixture whose worker crashes when it reads the lines of the slice.

    Each crash decreases `crashes` by one. At 0, the worker no longer crashes.
    """

    def __init__(self, crashes: int) -> None:
        super().__init__(ok)
        self.crashes = crashes
        self.is_locked: list[bool] = []
        self._get = self.storage.get
        self.storage.get = self.get_or_die

    async def get_or_die(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == SHARD:
            await asyncio.sleep(0)  # the attempt sends its first heartbeat
        if key == SHARD and self.crashes:
            self.crashes -= 1
            self.is_locked.append(self.context.quarantine_lock.locked())
            raise ApplicationError("killed", type=Failure.OWNERSHIP_LOST)  # the attempt reports nothing more
        return await self._get(key, start, length)

    async def end_early(self) -> None:
        """Run an attempt on a worker that cannot reach its storage, and report the end of the attempt to the
        next one.
        """
        beats = list[SliceResult]()
        self.environment.on_heartbeat = beats.append
        self.context.missing_dependencies = lambda: "storage"
        assert (await self.failure(request())).type == Failure.DEFERRED
        self.context.missing_dependencies = str
        self.next_attempt(*beats[-1:])

    async def until_ended(self, request: SliceRequest) -> ApplicationError | None:
        """Run one attempt after the other until the slice succeeds or fails.

        Return its error if it failed, or None.
        """
        for _ in range(20):
            try:
                await self.run(request)
                return None
            except ApplicationError as error:
                if error.type != Failure.OWNERSHIP_LOST:
                    return error
            self.next_worker()
        raise AssertionError("worker after worker died")


async def test_a_slice_whose_lines_crash_each_worker_that_reads_them_fails() -> None:
    worker = CrashingPreparation(crashes=1000)
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    error = await worker.until_ended(request())
    assert error is not None
    assert (error.type, error.non_retryable) == (Failure.WORKER_CRASHED, True)
    assert worker.is_locked == [False] * 2 + [True] * MAX_PREPARATION_CRASHES


async def test_a_slice_whose_crashes_stop_in_time_sends_its_lines() -> None:
    worker = CrashingPreparation(crashes=4)
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    assert await worker.until_ended(request()) is None
    assert len(await worker.settled()) == 10
    assert not worker.server.heartbeats[-1].is_preparing


async def test_a_slice_that_ends_before_it_reads_its_lines_hides_no_crash_before_it() -> None:
    worker = CrashingPreparation(crashes=1000)
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    for _ in range(2 + MAX_PREPARATION_CRASHES):
        assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
        worker.next_worker()
        await worker.end_early()
    assert (await worker.failure(request())).type == Failure.WORKER_CRASHED
    assert worker.is_locked == [False] * 2 + [True] * MAX_PREPARATION_CRASHES


async def crashed_twice() -> CrashingPreparation:
    """Return a fixture whose slice of ten lines has crashed two workers. Its next attempt is quarantined."""
    worker = CrashingPreparation(crashes=2)
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    for _ in range(2):
        assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
        worker.next_worker()
    return worker


@pytest.mark.usefixtures("skipped_waits")
async def test_a_stopped_slice_does_not_wait_for_a_quarantined_step() -> None:
    worker = await crashed_twice()
    await check_stop_while_locked(worker)
    assert worker.sent == []


@pytest.mark.usefixtures("skipped_waits")
async def test_a_slice_that_gets_memory_while_other_quarantined_work_runs_returns_it() -> None:
    worker = await crashed_twice()
    budget = worker.context.budget
    others = budget.reserve(worker.settings.byte_budget)
    running = worker.start(request())
    await eventually(lambda: budget.waiting == 1)
    async with worker.context.quarantine_lock:
        budget.release(others)
        await asyncio.sleep(10)
        assert (running.done(), budget.held, worker.sent) == (False, 0, [])
    assert (await running).finished


@pytest.mark.usefixtures("skipped_waits")
async def test_a_slice_that_waits_for_memory_keeps_its_place_while_other_quarantined_work_runs() -> None:
    worker = await crashed_twice()
    budget = worker.context.budget
    others = budget.reserve(worker.settings.byte_budget)
    running = worker.start(request())
    await eventually(lambda: budget.waiting == 1)
    async with worker.context.quarantine_lock:
        await asyncio.sleep(10)
        later = budget.reserve(worker.settings.byte_budget)
    await asyncio.sleep(10)
    budget.release(others)
    assert not later.granted
    assert (await running).finished


async def test_a_short_turn_that_has_read_its_lines_begins_the_count_of_crashes_again() -> None:
    worker = CrashingPreparation(crashes=1)
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    assert (await worker.failure(request())).type == Failure.OWNERSHIP_LOST
    worker.next_worker()
    assert (await worker.run(request())).finished
    last = worker.server.heartbeats[-1].model_dump()
    assert attempt_history(3, [last]) == AttemptHistory(3, 2, 1)
    assert attempt_history(3, [last, RELEASED]) == AttemptHistory(3)


async def test_one_worker_death_starts_no_quarantine() -> None:
    worker = CrashingWorker()
    await plan_slice(worker.storage, [line_of(n) for n in range(10)])
    task = worker.start(request())
    await asyncio.wait([task])
    worker.next_worker()
    worker.poison = ""
    result = await worker.run(request())
    assert (result.finished, result.completed) == (True, 10)
    kinds = [record.kind.name for record in await worker.records()]
    assert set(kinds) == {"SETTLED"}


async def test_normal_ends_of_turns_do_not_count_as_deaths() -> None:
    worker = ExecutionFixture(ok, model_in_flight=1)
    worker.occupy_all_places()
    await plan_slice(worker.storage, [line_of(n) for n in range(5)])
    for _ in range(5):
        await worker.turn(request(slice_seconds=0))
        worker.next_attempt()
    assert {record.kind.name for record in await worker.records()} == {"SETTLED"}


@pytest.mark.parametrize(
    ("attempt", "details", "past"),
    [
        (1, [], AttemptHistory(1)),
        (3, [], AttemptHistory(3, 2, 1, unread_crashes=2)),  # two workers died before their first beat
        (4, [{"attempt": 3, "crashes": 1, "first_crash": 2}], AttemptHistory(4, 2, 2, unread_crashes=1)),
        (4, [{"attempt": 3, "crashes": 1, "first_crash": 2}, RELEASED], AttemptHistory(4, 1, 2)),
        (4, [{"attempt": 3, "crashes": 1, "first_crash": 2, "has_read": True}, RELEASED], AttemptHistory(4)),
        (
            6,
            [{"attempt": 3, "crashes": 1, "first_crash": 2, "has_read": True}, RELEASED],
            AttemptHistory(6, 2, 4, unread_crashes=2),
        ),  # two died without a beat since
        (4, [RELEASED], AttemptHistory(4)),
        (6, [{"attempt": 4, "crashes": 3, "first_crash": 1}], AttemptHistory(6, 5, 1, unread_crashes=2)),
        (
            6,
            [{"attempt": 5, "crashes": 4, "first_crash": 1, "preparation_crashes": 1, "is_preparing": True}],
            AttemptHistory(6, 5, 1, 2, unread_crashes=1),
        ),
        (
            6,
            [{"attempt": 5, "crashes": 4, "first_crash": 1, "preparation_crashes": 1}],
            AttemptHistory(6, 5, 1, 1, unread_crashes=1),
        ),
        (
            6,
            [{"attempt": 5, "crashes": 4, "first_crash": 1, "preparation_crashes": 1}, RELEASED],
            AttemptHistory(6, 4, 1, 1),
        ),
        (
            4,
            [{"attempt": 3, "crashes": 2, "first_crash": 1, "unread_crashes": 2}, RELEASED],
            AttemptHistory(4, 2, 1, unread_crashes=2),
        ),
        (
            4,
            [{"attempt": 3, "crashes": 2, "first_crash": 1, "unread_crashes": 2, "has_read": True}],
            AttemptHistory(4, 3, 1),
        ),
        (1, [{"attempt": 5, "crashes": 4, "first_crash": 1}], AttemptHistory(1)),  # an operator has reset it
        (4, [{"completed": 1}], AttemptHistory(4, 3, 1, unread_crashes=3)),  # of a version that did not tell
    ],
)
def test_deaths_are_derived_from_attempts_and_heartbeats(
    attempt: int, details: list[object], past: AttemptHistory
) -> None:
    assert attempt_history(attempt, details) == past
