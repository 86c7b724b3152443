"""`x_batchwright.start_at`: the time at which a new batch starts."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.json_body import wrong_type
from batchwright.rules.deadline import MAX_START_DELAY

PARAM = "x_batchwright.start_at"
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_MAX_SHOWN_CHARACTERS = 60
StartTime = Annotated[
    int | str | None,
    Field(
        description="time at which the batch starts, in Unix seconds or as RFC 3339 with an offset, such as "
        f"`2026-12-01T02:00:00Z`, at most {MAX_START_DELAY.days} days ahead; the completion window counts "
        "from then"
    ),
]


def parse_start_at(value: object) -> datetime | None:
    """Convert the start time in a request to UTC, in whole seconds. Return None if `value` is None.

    Raises:
        ApiError: the value is not a time.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong_type(PARAM, "a string or an integer", value)
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        if _RFC_3339.fullmatch(value) is not None:
            return datetime.fromisoformat(value.upper()).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError, OSError):  # a time that does not exist, or of a year after 9999
        pass
    shown = repr(value)[:_MAX_SHOWN_CHARACTERS]
    message = (
        f"Invalid value for '{PARAM}': expected Unix seconds, or an RFC 3339 time with an offset such as "
        f"'2026-12-01T02:00:00Z', but got {shown}."
    )
    raise invalid_value(PARAM, message)


def check_start_at(start_at: datetime | None, now: datetime) -> None:
    """Check that a batch may start at the time `start_at` if it is created at the time `now`.

    Raises:
        ApiError: the time is in the past, or too far in the future.
    """
    if start_at is None:
        return
    if start_at < now:
        message = (
            f"Invalid value for '{PARAM}': {_text(start_at)} is in the past; it is {_text(now)} now. Leave "
            "the field out to start the batch at once."
        )
        raise invalid_value(PARAM, message)
    if start_at > now + MAX_START_DELAY:
        message = (
            f"Invalid value for '{PARAM}': {_text(start_at)} is more than {MAX_START_DELAY.days} days ahead. "
            f"The latest time that is allowed now is {_text(now + MAX_START_DELAY)}."
        )
        raise invalid_value(PARAM, message)


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
