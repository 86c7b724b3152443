"""The header `anthropic-version`. Anthropic's API requires it in each request to `/v1/messages`."""

from datetime import UTC, datetime

import pytest

from batchwright.activities.execution.jobs import forwarded_headers
from batchwright.contracts.batch import Caller
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.openai import Endpoint

SENT = {"anthropic-version": "2026-10-21"}


@pytest.mark.parametrize(
    ("endpoint", "headers", "expected"),
    [
        (Endpoint.MESSAGES, {}, [(b"anthropic-version", b"2023-06-01")]),
        (Endpoint.MESSAGES, SENT, [(b"anthropic-version", b"2026-10-21")]),
        (Endpoint.CHAT_COMPLETIONS, {}, []),
    ],
)
def test_a_message_is_sent_with_the_version_of_its_batch(
    endpoint: Endpoint, headers: dict[str, str], expected: list[tuple[bytes, bytes]]
) -> None:
    request = SliceRequest(
        batch_id="batch_1",
        tenant="t",
        endpoint=endpoint,
        ingest_prefix="p",
        model="m",
        safe_model="m",
        number=0,
        deadline=datetime(2026, 1, 1, tzinfo=UTC),
        caller=Caller(headers=headers),
    )
    assert forwarded_headers(request) == expected
