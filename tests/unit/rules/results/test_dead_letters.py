"""The content of a dead letter (the record of a line that failed for good)."""

from datetime import UTC, datetime

import pytest

from batchwright.rules.results.dead_letters import DeadLetter, FinalAttempt, error_summary, parse_dead_letter


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "CUDA out of memory", "code": 1}}', "CUDA out of memory"),
        (b'{"error": "no room"}', "no room"),
        (b'{"error": null}', '{"error": null}'),
        (b'{"error": {"message": 7}}', '{"error": {"message": 7}}'),
        (b"<html>oops</html>\n", "<html>oops</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "HTTP 500"),
        (b"a\x00b", "a\ufffdb"),
        (b"[" * 100_000, "[" * 500),
    ],
)
def test_an_error_text_is_at_most_500_characters(body: bytes, message: str) -> None:
    assert error_summary(500, body) == message


def test_a_dead_letter_has_the_last_error_without_characters_a_database_cannot_store() -> None:
    last = FinalAttempt(
        count=5, failed_at=1_700_000_000.7, custom_id="a\x00" + "b" * 600, model="m", code="request_timeout"
    )
    assert parse_dead_letter(last.model_dump_json().encode(), id="batch_req_1", offset=12) == DeadLetter(
        id="batch_req_1",
        offset=12,
        custom_id="a\ufffd" + "b" * 498,
        model="m",
        attempts=5,
        failed_at=datetime.fromtimestamp(1_700_000_000, UTC),
        code="request_timeout",
    )
