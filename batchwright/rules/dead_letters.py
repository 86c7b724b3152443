"""Dead letters: lines that failed after their last attempt. What was wrong from the start is none."""

from datetime import UTC, datetime

import msgspec

from batchwright.contracts.message import Message

_MOST_CHARACTERS = 500
_SHOWN_BODY = 65_536


class LastAttempt(Message):
    """The payload of a final attempt record. `failed_at` is in Unix seconds; `status` 0: no HTTP answer.

    `count` is read by older versions, too, which take the record for an attempt like any other.
    """

    count: int
    failed_at: float
    custom_id: str = ""
    model: str = ""
    status: int = 0
    code: str = ""
    error: str = ""


class DeadLetter(Message):
    """`id` is the `batch_req_...` of the line in the error file, `offset` its place in the input."""

    id: str
    offset: int
    custom_id: str
    model: str
    attempts: int
    failed_at: datetime
    status: int | None = None
    code: str | None = None
    message: str = ""


class _Error(msgspec.Struct):
    message: str = ""


class _Body(msgspec.Struct):
    error: _Error | str | None = None


_BODY = msgspec.json.Decoder(_Body)


def dead_letter(payload: bytes, *, id: str, offset: int) -> DeadLetter:
    """Of a final attempt record. Without NUL characters, which PostgreSQL takes none of."""
    last = LastAttempt.model_validate_json(payload)
    return DeadLetter(
        id=id,
        offset=offset,
        custom_id=_short(last.custom_id),
        model=last.model,
        attempts=last.count,
        failed_at=datetime.fromtimestamp(int(last.failed_at), UTC),
        status=last.status or None,
        code=last.code or None,
        message=_short(last.error),
    )


def said(status: int, body: bytes) -> str:
    """What an HTTP error says of itself: its message, as OpenAI words it, or the beginning of its body."""
    try:
        error = _BODY.decode(body[:_SHOWN_BODY]).error
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        error = None
    text = error.message if isinstance(error, _Error) else error
    text = text or body[:_MOST_CHARACTERS].decode("utf-8", "replace").strip()
    return _short(text) if text else f"HTTP {status}"


def _short(text: str) -> str:
    return text[:_MOST_CHARACTERS].replace("\x00", "\ufffd")
