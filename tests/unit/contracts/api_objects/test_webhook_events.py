"""Webhook events, read by the official client."""

import json
import time
from datetime import UTC, datetime

import pytest
from openai import OpenAI

from batchwright.contracts.api_objects.webhook_events import END_EVENTS, EventDetails, EventType, batch_event
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.webhooks.signatures import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENDS = [status for status in BatchStatus if status.is_terminal]
AT = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize("type", EventType)
@pytest.mark.parametrize("details", [None, EventDetails(status=BatchStatus.COMPLETED)])
def test_the_official_client_unwraps_every_event(type: EventType, details: EventDetails | None) -> None:
    body = batch_event("evt_1", "batch_1", type, AT, details).body()
    headers = signed_headers([SECRET], "wh_1", int(time.time()), body)
    unwrapped = OpenAI(api_key="none").webhooks.unwrap(body.decode(), headers, secret=SECRET)
    assert (unwrapped.id, unwrapped.type, unwrapped.created_at) == ("evt_1", type, 1795219200)
    assert unwrapped.data.to_dict()["id"] == "batch_1"


def test_without_details_the_body_is_exactly_openais() -> None:
    event = batch_event("evt_1", "batch_1", EventType.BATCH_EXPIRED, AT)
    assert json.loads(event.body()) == {
        "id": "evt_1",
        "object": "event",
        "type": "batch.expired",
        "created_at": 1795219200,
        "data": {"id": "batch_1"},
    }


@pytest.mark.parametrize("status", ENDS)
def test_every_end_of_a_batch_has_an_event(status: BatchStatus) -> None:
    assert EventType.of_end(status) in END_EVENTS


def test_a_live_batch_has_not_ended() -> None:
    with pytest.raises(ValueError, match=r"batch\.in_progress"):
        EventType.of_end(BatchStatus.IN_PROGRESS)
