"""Reasons why models of batches wait, as one worker publishes them."""

import pytest

from batchwright.activities.services import waiting_reason_publisher
from batchwright.activities.services.waiting_reason_publisher import WaitingReasons
from batchwright.contracts.temporal_payloads.batch import WaitingReason
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

    reasons = WaitingReasons(signal, MemoryDatabase().waiting)
    for model in ("a", "b", again, "b"):
        reasons.report("acme", "batch", model, "its backend does not respond", 5.0)
        await reasons_published()
    assert signalled == signals
