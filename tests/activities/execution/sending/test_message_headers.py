"""The header `anthropic-version`. Anthropic's API requires it in each request to `/v1/messages`."""

import pytest

from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_headers import forwarded_headers

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
    assert forwarded_headers(endpoint, Caller(headers=headers)) == expected
