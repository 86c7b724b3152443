"""Reasons why a worker stops running a slice: time limit, deadline, cancel, shutdown, or a lost lease."""

import asyncio
import time
from collections import Counter
from datetime import timedelta

import httpx
import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    content_of,
    eventually,
    in_seconds,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.permit_requests import PermitWaiter

pytestmark = pytest.mark.usefixtures("skipped_waits")

HELD = "3"


class BlockedBackend(ExecutionFixture):
    """A backend that responds immediately, except to the line `HELD`, which waits until `release` is set."""

    def __init__(self, **settings: object) -> None:
        super().__init__(ok, **settings)
        self.release = asyncio.Event()
        self.answer = self._held

    async def planned(self, lines: int = 6) -> list[int]:
        return await plan_slice(self.storage, [line_of(n) for n in range(lines)])

    async def until_only_the_held_one_is_left(self) -> None:
        await eventually(lambda: len(self.sent) == 6 and self.context.permits.used == 1)

    async def _held(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == HELD:
            await self.release.wait()
        return ok(content_of(sent))


async def ended(running: "asyncio.Task[SliceResult]") -> ApplicationError:
    try:
        result = await running
    except ApplicationError as error:
        return error
    raise AssertionError(f"the slice returned {result!r}")


# The turn's time


async def test_a_turn_that_is_over_finishes_requests_in_flight_and_releases_its_slot() -> None:
    execution = BlockedBackend(model_in_flight=1)
    execution.occupy_all_places()
    await plan_slice(execution.storage, [line_of(int(HELD)), line_of(4)])
    running = execution.start(request(slice_seconds=0))
    await eventually(lambda: execution.sent == [HELD])
    execution.release.set()
    error = await ended(running)
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    assert error.next_retry_delay is not None
    assert error.next_retry_delay >= timedelta(milliseconds=1)
    assert (execution.sent, len(await execution.settled())) == ([HELD], 1)


async def test_a_slice_continues_after_its_turn_while_no_other_slice_waits() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    await plan_slice(execution.storage, [line_of(n) for n in range(30)])
    assert await execution.run(request(slice_seconds=0)) == SliceResult(finished=True, completed=30)


async def test_a_slice_without_a_permit_for_a_whole_turn_releases_its_slot() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    execution.occupy_all_places()
    await plan_slice(execution.storage, [line_of(0)])
    others = PermitWaiter(execution.context.permits, MODEL, "other").permit
    error = await execution.failure(request())
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    assert (execution.sent, execution.context.budget.held) == ([], 0)
    others.release()
    execution.next_attempt()
    assert (await execution.run(request())).completed == 1


async def test_turns_together_send_every_line_of_the_slice_once() -> None:
    execution = ExecutionFixture(ok, model_in_flight=4)
    execution.occupy_all_places()
    await plan_slice(execution.storage, [line_of(n) for n in range(30)])
    turns = 1
    while (result := await execution.turn(request(slice_seconds=0))) is None:
        execution.next_attempt()
        turns += 1
    assert turns > 5
    assert result == SliceResult(finished=True, completed=30)
    assert max(Counter(execution.sent).values()) == 1
    assert len(await execution.settled()) == 30


async def test_many_turns_do_not_leave_many_segments() -> None:
    execution = ExecutionFixture(ok, model_in_flight=2)
    execution.occupy_all_places()
    await plan_slice(execution.storage, [line_of(n) for n in range(40)])
    while await execution.turn(request(slice_seconds=0)) is None:
        assert len(await execution.segment_names()) <= 8
        execution.next_attempt()
    assert len(await execution.segment_names()) == 1


async def test_a_storage_outage_during_a_turn_is_retried_and_costs_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    execution = BlockedBackend()
    await execution.planned()
    put, failures = execution.storage.put, 3

    async def put_later(key: str, data: bytes) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable("away")
        await put(key, data)

    execution.storage.put = put_later
    running = execution.start(request())
    await execution.until_only_the_held_one_is_left()
    await eventually(lambda: failures == 0 or running.done())
    execution.release.set()
    assert await running == SliceResult(finished=True, completed=6)
    assert sorted(execution.sent) == [str(n) for n in range(6)]
    assert [record.message for record in caplog.records].count("results cannot be stored") == 1


# The window


async def test_after_the_deadline_nothing_is_sent_and_results_are_kept() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offsets[0], b"{}", True))
    assert await execution.run(request(deadline=in_seconds(0))) == SliceResult(completed=1)
    assert execution.sent == []


async def test_the_deadline_aborts_requests_in_flight_after_the_grace() -> None:
    execution = BlockedBackend()
    await execution.planned()
    deadline = in_seconds(5)
    result = await execution.run(request(deadline=deadline, expiry_grace_seconds=0.1))
    assert result == SliceResult(completed=5)
    assert execution.context.permits.used == 0
    assert len(await execution.settled()) == 5


async def test_an_answer_within_the_grace_after_the_deadline_counts() -> None:
    execution = BlockedBackend()
    await execution.planned()
    deadline = in_seconds(5)
    running = execution.start(request(deadline=deadline))
    await execution.until_only_the_held_one_is_left()
    await eventually(lambda: time.time() > deadline.timestamp())
    execution.release.set()
    assert await running == SliceResult(finished=True, completed=6)


async def test_the_deadline_stops_dispatch() -> None:
    execution = BlockedBackend(model_in_flight=1)
    await execution.planned(lines=10)
    deadline = in_seconds(5)
    result = await execution.run(request(deadline=deadline, expiry_grace_seconds=0.05))
    assert result == SliceResult(completed=3)
    assert execution.sent == ["0", "1", "2", HELD]


# Cancel and pause


async def test_a_cancel_stops_dispatch_and_keeps_answers_within_the_grace() -> None:
    execution = BlockedBackend(model_in_flight=1)
    await execution.planned(lines=10)
    running = execution.start(request())
    await eventually(lambda: HELD in execution.sent)
    execution.environment.cancel()
    execution.release.set()
    assert await running == SliceResult(completed=4)
    assert len(await execution.settled()) == len(execution.sent) == 4


async def test_a_cancel_aborts_requests_in_flight_after_the_grace() -> None:
    execution = BlockedBackend()
    await execution.planned()
    running = execution.start(request(cancel_grace_seconds=0.05))
    await execution.until_only_the_held_one_is_left()
    execution.environment.cancel()
    assert await running == SliceResult(completed=5)
    assert execution.context.permits.used == 0


async def test_a_cancel_received_with_a_heartbeat_stops_the_slice() -> None:
    execution = BlockedBackend()
    execution.server.reply = HeartbeatReply.CANCEL_REQUESTED
    await execution.planned()
    assert await execution.run(request(cancel_grace_seconds=0.05)) == SliceResult(
        completed=len(await execution.settled())
    )


async def test_a_cancelled_slice_can_be_started_again() -> None:
    execution = BlockedBackend(model_in_flight=1)
    await execution.planned(lines=10)
    running = execution.start(request(cancel_grace_seconds=0))
    await eventually(lambda: HELD in execution.sent)
    execution.environment.cancel()
    await running
    execution.next_attempt()
    execution.release.set()
    assert await execution.run(request(generation=1)) == SliceResult(finished=True, completed=10)
    assert [content for content, times in Counter(execution.sent).items() if times > 1] == [HELD]


# Shutdown and ownership


async def test_a_worker_that_shuts_down_finishes_requests_in_flight_and_returns_the_slice() -> None:
    execution = BlockedBackend(model_in_flight=1)
    await execution.planned(lines=10)
    running = execution.start(request())
    await eventually(lambda: HELD in execution.sent)
    execution.environment.worker_shutdown()
    execution.release.set()
    error = await ended(running)
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    execution.next_attempt()
    assert await execution.run(request()) == SliceResult(finished=True, completed=10)
    assert max(Counter(execution.sent).values()) == 1


async def test_a_worker_that_shuts_down_aborts_requests_that_outlast_its_drain_and_keeps_the_rest() -> None:
    execution = BlockedBackend(drain_seconds=0)
    await execution.planned()
    running = execution.start(request())
    await execution.until_only_the_held_one_is_left()
    execution.environment.worker_shutdown()
    error = await ended(running)
    assert error.type == Failure.TURN_OVER
    assert len(await execution.settled()) == 5


async def test_an_attempt_that_lost_its_slice_writes_nothing() -> None:
    execution = BlockedBackend()
    execution.server.reply = HeartbeatReply.LEASE_LOST
    await execution.planned(lines=200)
    error = await ended(execution.start(request()))
    assert error.type == Failure.OWNERSHIP_LOST
    assert await execution.records() == []
    assert (execution.context.permits.used, execution.context.budget.held) == (0, 0)


async def test_a_paused_activity_returns_its_slice_without_ending_it() -> None:
    execution = BlockedBackend(drain_seconds=0)
    execution.server.reply = HeartbeatReply.PAUSED
    await execution.planned()
    error = await ended(execution.start(request()))
    assert error.type == Failure.TURN_OVER


async def test_heartbeats_report_the_progress_of_the_slice() -> None:
    execution = ExecutionFixture(ok)
    (offset, _) = await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}", True))
    await execution.run(request())
    assert execution.server.heartbeats[0].finished is False
