"""Webhook events and their signatures, read by the official client."""

import time
from datetime import UTC, datetime

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from batchwright.contracts.openai import BatchStatus
from batchwright.contracts.webhook_events import BatchEvent, EventType, batch_event
from batchwright.rules.ids import event_id
from batchwright.rules.webhook_signatures import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENDS = [status for status in BatchStatus if status.is_terminal]


def an_event(status: BatchStatus) -> BatchEvent:
    ended_at = datetime(2026, 11, 21, tzinfo=UTC)
    return batch_event(event_id("batch_1", status), "batch_1", status, ended_at)


@pytest.mark.parametrize("status", ENDS)
def test_the_official_client_unwraps_the_event_of_every_end(status: BatchStatus) -> None:
    event = an_event(status)
    body = event.model_dump_json()
    headers = signed_headers(SECRET, event.id, int(time.time()), body.encode())
    unwrapped = OpenAI(api_key="none").webhooks.unwrap(body, headers, secret=SECRET)
    assert unwrapped.to_dict() == {
        "id": event_id("batch_1", status),
        "object": "event",
        "type": f"batch.{status}",
        "created_at": 1795219200,
        "data": {"id": "batch_1"},
    }


@pytest.mark.parametrize("change", [{"body": "{}"}, {"late": 301}, {"secret": "whsec_AAAA"}])
def test_the_official_client_refuses_changed_or_late_events(change: dict[str, str | int]) -> None:
    body = an_event(BatchStatus.COMPLETED).model_dump_json()
    sent_at = int(time.time()) - int(change.get("late", 0))
    headers = signed_headers(SECRET, "evt_1", sent_at, body.encode())
    client, secret = OpenAI(api_key="none"), str(change.get("secret", SECRET))
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(str(change.get("body", body)), headers, secret=secret)


def test_only_ends_of_batches_are_events() -> None:
    with pytest.raises(ValueError, match=r"batch\.in_progress"):
        EventType.of(BatchStatus.IN_PROGRESS)


def test_an_invalid_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        signed_headers("whsec_ü", "evt_1", 0, b"")
