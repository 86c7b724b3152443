"""The reasons why a slice waits, as its worker reports them."""

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
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
