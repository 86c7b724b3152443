"""The lease of a slice, which acknowledged heartbeats renew, and the reasons why the slice waits."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from batchwright.activities.execution.slice_state import lease
from batchwright.activities.execution.slice_state.lease import HeartbeatReply, SliceLease, is_fresh_attempt
from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    FakeHeartbeatServer,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.background_tasks import reasons_published
from tests.fakes.memory_database import MemoryDatabase


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def beating(owner: SliceLease, replies: list[HeartbeatReply]) -> AsyncGenerator["asyncio.Task[None]"]:
    task = asyncio.create_task(owner.run(SliceResult, replies.append, at_once=True))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_lease_lasts_until_the_last_acknowledged_heartbeat_is_too_old() -> None:
    clock = Clock()
    owner = SliceLease(FakeHeartbeatServer().beat(), timedelta(seconds=30), clock)
    clock.now = 24.9
    assert owner.is_valid
    clock.now = 25.0
    assert not owner.is_valid


def test_without_a_heartbeat_timeout_the_lease_never_ends() -> None:
    clock = Clock()
    owner = SliceLease(FakeHeartbeatServer().beat(), None, clock)
    clock.now = 1e9
    assert owner.is_valid


async def test_an_acknowledged_heartbeat_counts_from_the_time_it_was_sent() -> None:
    clock, server = Clock(), FakeHeartbeatServer()
    beat = server.beat()

    async def slow(details: SliceResult) -> HeartbeatReply:
        word = await beat(details)
        clock.now = 30.0  # the answer took as long as the timeout
        return word

    owner = SliceLease(slow, timedelta(seconds=30), clock)
    async with beating(owner, []):
        await eventually(lambda: clock.now == 30.0)
        assert not owner.is_valid


async def test_an_unacknowledged_heartbeat_does_not_extend_the_lease() -> None:
    clock, server = Clock(), FakeHeartbeatServer(HeartbeatReply.UNREACHABLE)
    owner = SliceLease(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies):
        await eventually(lambda: bool(server.heartbeats))
        assert (owner.is_valid, replies) == (False, [])


async def test_a_cancel_is_received_and_heartbeats_continue() -> None:
    clock, server = Clock(), FakeHeartbeatServer(HeartbeatReply.CANCEL_REQUESTED)
    owner = SliceLease(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies) as task:
        await eventually(lambda: bool(replies))
        assert (replies, owner.is_valid, task.done()) == ([HeartbeatReply.CANCEL_REQUESTED], True, False)


async def test_a_lost_slice_is_reported_once_and_heartbeats_end() -> None:
    owner = SliceLease(FakeHeartbeatServer(HeartbeatReply.LEASE_LOST).beat(), timedelta(seconds=30))
    replies: list[HeartbeatReply] = []
    async with beating(owner, replies) as task:
        await task
    assert replies == [HeartbeatReply.LEASE_LOST]


@pytest.mark.parametrize(
    ("attempt", "age", "fresh"),
    [(1, 0.1, True), (1, -0.1, True), (1, 40, False), (1, -40, False), (2, 0, False)],
)
def test_only_a_first_attempt_that_was_just_handed_out_is_fresh(
    attempt: int, age: float, fresh: bool
) -> None:
    now = datetime.now(UTC)
    info = ActivityEnvironment.default_info()
    info = dataclasses.replace(info, attempt=attempt, started_time=now - timedelta(seconds=age))
    assert is_fresh_attempt(info, now) is fresh


async def test_a_fresh_attempt_has_no_heartbeat_yet() -> None:
    server = FakeHeartbeatServer()
    owner = SliceLease(server.beat(), timedelta(seconds=30))
    task = asyncio.create_task(owner.run(SliceResult, lambda word: None, at_once=False))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.heartbeats == []


def test_the_lease_lasts_for_several_heartbeat_intervals() -> None:
    assert lease.HEARTBEAT_SECONDS <= 2


async def test_answers_to_requests_sent_before_the_outage_do_not_clear_the_waiting_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batchwright.activities.execution.dispatch_loop.MAX_BLOCKED_SECONDS", 0.0)
    execution, broken = ExecutionFixture(ok), asyncio.Event()
    await plan_slice(execution.storage, [line_of(n) for n in range(2)])

    async def answer(request: httpx.Request) -> httpx.Response:
        if content_of(request) == "1":
            return status(403)
        await broken.wait()
        return ok("0")

    execution.answer = answer
    execution.next_worker()  # which beats at once
    execution.context.waiting_reasons.report(TENANT, BATCH, MODEL, "reported by another slice", 60.0)
    slice = asyncio.create_task(execution.failure(request()))
    await eventually(lambda: execution.circuit(MODEL).is_open)
    broken.set()
    assert (await slice).type == Failure.DEFERRED
    await reasons_published()
    assert "" not in [reports.reason for _, reports in execution.reported_reasons]
    assert "forbids" in execution.reported_reasons[-1][1].reason


class ReportFixture:
    """The waiting reasons that one worker reports.

    If `others` is given, which is another worker's fixture, both workers use the same database.
    """

    def __init__(self, others: "ReportFixture | None" = None) -> None:
        self.clock = Clock()
        self.database = others.database if others else MemoryDatabase()
        self.table = self.database.waiting
        self.reasons: list[tuple[str, str, str]] = []
        self.signals = WaitingReasonPublisher(self._tell, self.table, self.clock)

    async def _tell(self, batch_id: str, reason: WaitingReason) -> None:
        self.reasons.append((batch_id, reason.model, reason.reason))


async def test_a_waiting_reason_is_reported_only_when_it_changes() -> None:
    reports = ReportFixture()
    for _ in range(3):
        reports.signals.report("t", "b", "m", "away", 5.0)
    reports.signals.report("t", "b", "n", "away", 5.0)
    await reasons_published()
    assert reports.reasons == [("b", "m", "away"), ("b", "n", "away")]


async def test_the_first_waiting_reasons_are_reported_at_once_and_later_ones_once_a_minute() -> None:
    reports = ReportFixture()
    reasons = [f"reason {n}" for n in range(21)]
    for reason in reasons:
        reports.signals.report("t", "b", "m", reason, 5.0)
    reports.clock.now = 59.0
    reports.signals.report("t", "b", "m", "reason 20", 5.0)
    await reasons_published()
    assert [reason for _, _, reason in reports.reasons] == reasons[:20]
    reports.clock.now = 60.0
    reports.signals.report("t", "b", "m", "reason 20", 5.0)
    reports.signals.report("t", "b", "m", "reason 21", 5.0)
    await reasons_published()
    assert [reason for _, _, reason in reports.reasons][20:] == ["reason 20"]


async def test_a_day_of_waiting_reasons_that_come_and_go_is_few_signals() -> None:
    """Temporal accepts at most 10,000 signals for a workflow, from all workers together. After that, the
    workflow could no longer be cancelled.
    """
    reports = ReportFixture()
    for tick in range(24 * 60 * 2):
        reports.clock.now = 30.0 * tick
        for model in ("m", "n", "o"):
            reports.signals.report("t", "b", model, "limited", 5.0)
        await reasons_published()
        reports.clock.now += 6.0
        for model in ("m", "n", "o"):
            reports.signals.clear("t", "b", model)
        await reasons_published()
    assert 100 < len(reports.reasons) < 400


async def test_a_cleared_waiting_reason_is_reported_again_at_once() -> None:
    """The reason is cleared between two reports, because the slice sends again after some of its requests
    were answered.
    """
    reports = ReportFixture()
    reports.signals.report("t", "b", "m", "away", 5.0)
    reports.signals.clear("t", "b", "m")
    reports.signals.report("t", "b", "m", "away", 5.0)
    await reasons_published()
    assert [reason for _, _, reason in reports.reasons] == ["away", "", "away"]


async def test_progress_clears_a_waiting_reason_once() -> None:
    reports = ReportFixture()
    reports.signals.clear("t", "b", "m")
    reports.signals.report("t", "b", "m", "one", 5.0)
    reports.signals.clear("t", "b", "m")
    reports.signals.clear("t", "b", "m")
    await reasons_published()
    assert [reason for _, _, reason in reports.reasons] == ["one", ""]


async def test_the_waiting_reason_of_a_dead_worker_is_cleared_by_the_next_attempt() -> None:
    gone = ReportFixture()
    next_attempt = ReportFixture(gone)
    gone.signals.report("t", "b", "m", "away", 60.0)
    await reasons_published()
    assert [each.reason for each in await gone.table.get(WaitingSource.WORKER, datetime.now(UTC))] == ["away"]
    next_attempt.signals.clear("t", "b", "m")
    await reasons_published()
    assert next_attempt.reasons == [("b", "m", "")]
    assert await gone.table.get(WaitingSource.WORKER, datetime.now(UTC)) == []


async def test_a_waiting_reason_cleared_by_another_worker_is_reported_again() -> None:
    still = ReportFixture()
    other = ReportFixture(still)
    still.signals.report("t", "b", "m", "away", 60.0)
    await reasons_published()
    other.signals.clear("t", "b", "m")
    await reasons_published()
    still.clock.now = 6.0
    still.signals.report("t", "b", "m", "away", 60.0)
    await reasons_published()
    assert [reason for _, _, reason in still.reasons] == ["away", "away"]


async def test_an_unavailable_database_does_not_keep_waiting_reasons_from_the_workflow() -> None:
    reports = ReportFixture()
    reports.database.rows.failing = DatabaseUnavailable("away")
    reports.signals.report("t", "b", "m", "away", 5.0)
    reports.signals.clear("t", "b", "m")
    await reasons_published()
    assert [reason for _, _, reason in reports.reasons] == ["away", ""]


async def test_the_lease_of_a_suspended_machine_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = 0.0

    async def beat(details: SliceResult) -> HeartbeatReply:
        return HeartbeatReply.OK

    def clock_gettime(clock: int) -> float:
        return 100.0 + suspended

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    owner = SliceLease(beat, timedelta(seconds=30))
    assert owner.is_valid
    suspended = 3600.0
    assert not owner.is_valid
