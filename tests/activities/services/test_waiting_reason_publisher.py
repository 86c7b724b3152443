"""Reasons why models of batches wait, as one worker publishes them."""

import asyncio

import pytest

from batchwright.activities.services import waiting_reason_publisher
from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from tests.background_tasks import reasons_published
from tests.fakes.memory_database import MemoryDatabase


@pytest.mark.parametrize(
    ("again", "signals"), [("b", ["a", "b"]), ("c", ["a", "b", "c"])], ids=["a known model", "a new model"]
)
async def test_a_workflow_is_signalled_once_even_if_as_many_models_wait_as_a_worker_remembers(
    again: str, signals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_reason_publisher, "_MAX_REMEMBERED", 2)
    signalled: list[str] = []

    async def signal(batch_id: str, reason: WaitingReason) -> None:
        signalled.append(reason.model)

    reasons = WaitingReasonPublisher(signal, MemoryDatabase().waiting)
    for model in ("a", "b", again, "b"):
        reasons.report("acme", "batch", model, "its backend does not respond", 5.0)
        await reasons_published()
    assert signalled == signals


async def test_a_reason_that_may_not_be_signalled_is_not_written_at_each_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, times, written = MemoryDatabase().waiting, [0.0], list[str]()
    write = table.report

    async def report(waiting: WaitingRow) -> bool:
        written.append(waiting.reason)
        return await write(waiting)

    async def signal(batch_id: str, reason: WaitingReason) -> None:
        pass

    monkeypatch.setattr(table, "report", report)
    reasons = WaitingReasonPublisher(signal, table, lambda: times[-1])
    for number in range(20):  # as many signals as may be sent without a pause
        reasons.report("acme", "batch", "model", f"reason {number}", 5.0)
    await reasons_published()
    written.clear()
    for at in (1.0, 3.0, 5.0, 7.0):
        times.append(at)
        reasons.report("acme", "batch", "model", "another reason", 5.0)
        await reasons_published()
    assert written == ["another reason"] * 2


async def test_reports_do_not_pile_up_while_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slice reports its reason every few seconds, and each write to a database that hangs takes longer."""
    table, times, answers, written = MemoryDatabase().waiting, [0.0], asyncio.Event(), list[str]()

    async def report(waiting: WaitingRow) -> bool:
        written.append(waiting.reason)
        await answers.wait()
        return False

    async def signal(batch_id: str, reason: WaitingReason) -> None:
        pass

    monkeypatch.setattr(table, "report", report)
    reasons = WaitingReasonPublisher(signal, table, lambda: times[-1])
    for number in range(100):
        times.append(10.0 * number)
        reasons.report("acme", "batch", "model", "the backend does not answer", 5.0)
    answers.set()
    await reasons_published()
    assert len(written) == 1
    times.append(2_000.0)
    reasons.report("acme", "batch", "model", "the backend does not answer", 5.0)
    await reasons_published()
    assert len(written) == 2
