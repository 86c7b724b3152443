"""Make dead letters: descriptions of lines that still failed after their last attempt.

Lines that failed validation are not dead letters.
"""

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from pydantic import BeforeValidator

from batchwright.contracts.message import Message
from batchwright.rules.json_text import replace_lone_surrogates, storable

StorableText = Annotated[str, BeforeValidator(storable)]
_MOST_CHARACTERS = 500
_SHOWN_BODY = 65_536


class FinalAttempt(Message):
    """The stored record of a line's last attempt, which has failed.

    The line's dead letter (the description of its failure) is made from this record.

    Attributes:
        count: number of attempts.
        failed_at: time of the failure, in Unix seconds.
        status: HTTP status; 0 if there was no usable response.
        code: error code if there was no usable response; otherwise empty.
    """

    count: int
    failed_at: float
    custom_id: StorableText = ""
    model: StorableText = ""
    status: int = 0
    code: str = ""
    error: StorableText = ""


class DeadLetter(Message):
    """A line that still failed after its last attempt.

    Attributes:
        id: `batch_req_...` id of the line in the error file.
        offset: position of the line in the input, in bytes.
        status: HTTP status; None if there was no usable response.
        code: error code if there was no usable response; otherwise None.
    """

    id: str
    offset: int
    custom_id: str
    model: str
    attempts: int
    failed_at: datetime
    status: int | None = None
    code: str | None = None
    message: str = ""


class _ErrorMessage(msgspec.Struct):
    message: str = ""


class _ErrorResponse(msgspec.Struct):
    error: _ErrorMessage | str | None = None


_BODY = msgspec.json.Decoder(_ErrorResponse)


def parse_dead_letter(payload: bytes, *, id: str, offset: int) -> DeadLetter:
    """Build the dead letter of a line from the stored record of its last attempt.

    A dead letter describes a line that still failed after its last attempt.

    Args:
        payload: JSON of a FinalAttempt.
        id: `batch_req_...` id of the line.
        offset: position of the line in the input, in bytes.
    """
    last = FinalAttempt.model_validate_json(payload)
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


def error_summary(status: int, body: bytes) -> str:
    """Return a short message for an HTTP error, at most 500 characters.

    The result is the error message in the body. If the body contains no error message, the result is the
    beginning of the body. If the body is empty, the result is `HTTP` and the status.
    """
    try:
        error = _BODY.decode(replace_lone_surrogates(body[:_SHOWN_BODY])).error
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        error = None
    text = error.message if isinstance(error, _ErrorMessage) else error
    text = text or body[:_MOST_CHARACTERS].decode("utf-8", "replace").strip()
    return _short(text) if text else f"HTTP {status}"


def _short(text: str) -> str:
    return storable(text[:_MOST_CHARACTERS])
