"""Parses and checks `x_batchwright.start_at`, the time at which a new batch starts."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from batchwright.api.errors import invalid_value
from batchwright.api.schemas.json_body import wrong_type
from batchwright.rules.deadline import MAX_START_DELAY, parse_start_time

PARAM = "x_batchwright.start_at"
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
        return parse_start_time(value)
    except ValueError as error:
        raise invalid_value(PARAM, f"Invalid value for '{PARAM}': {error}.") from None


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
