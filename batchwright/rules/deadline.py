"""Parse completion windows (the time that a batch may take), and compute the time until a deadline."""

import re
from datetime import UTC, datetime, timedelta
from typing import Self

from msgspec import Struct

from batchwright.contracts.terms import Profile

DEFAULT_WINDOW = "24h"
DAY_SECONDS = 86_400
MAX_START_DELAY = timedelta(days=30)  # a batch may start so long after its creation
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_MAX_SHOWN_CHARACTERS = 60
_WINDOW = re.compile(r"([1-9][0-9]{0,8})([smhd])", re.ASCII)


def window_seconds(text: str | None, profile: Profile, shortest: int, longest: int) -> int:
    """Return a batch's completion window in seconds. The window is the time that the batch may take.

    `24h` is always allowed, and is the default if `text` is None.

    Args:
        text: the window as the client wrote it, such as `90m`.
        profile: how strictly requests are checked. `strict` allows only `24h`.
        shortest: minimum of all other windows, in seconds.
        longest: maximum of all other windows, in seconds.

    Raises:
        ValueError: the window is not allowed. The message is for the client.
    """
    if text is None or text == DEFAULT_WINDOW:
        return DAY_SECONDS
    if profile is Profile.STRICT:
        raise ValueError(f"Invalid value: '{text}'. Supported values are: '{DEFAULT_WINDOW}'.")
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match else 0
    if not shortest <= seconds <= longest:
        raise ValueError(
            f"Invalid value: '{text}'. A completion window is a whole number followed by s, m, h or d, "
            f"from {window_text(shortest)} to {window_text(longest)}, such as '{DEFAULT_WINDOW}'."
        )
    return seconds


def parse_start_time(value: int | str) -> datetime:
    """Convert the start time of a batch, Unix seconds or RFC 3339, to UTC in whole seconds.

    Raises:
        ValueError: `value` is not a time.
    """
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        if _RFC_3339.fullmatch(value) is not None:
            return datetime.fromisoformat(value.upper()).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError, OSError):  # a time that does not exist, or of a year after 9999
        pass
    raise ValueError(
        "expected Unix seconds, or an RFC 3339 time with an offset such as '2026-12-01T02:00:00Z', but got "
        f"{repr(value)[:_MAX_SHOWN_CHARACTERS]}"
    )


def is_window(text: str) -> bool:
    """Return True if `text` has the form of a completion window, such as `90m`.

    The window is the time that a batch may take. The API may still refuse it, for example because it is too
    long.
    """
    return _WINDOW.fullmatch(text) is not None


def window_text(seconds: int) -> str:
    """Return a completion window (the time that a batch may take) as text in the largest whole unit.

    Example: `2d`. But one day is `24h`, as OpenAI writes it.
    """
    for unit in ("d", "h", "m"):
        size = _UNIT_SECONDS[unit]
        if seconds % size == 0 and seconds > size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


class Deadline(Struct, frozen=True):
    """The end of the time that a batch may take.

    Methods get the current time as an argument, because workflows have a clock of their own.

    Attributes:
        at: time of the deadline, in Unix seconds.
        grace: seconds that requests in flight may take after the deadline.
    """

    at: float
    grace: float = 0.0

    @classmethod
    def of(cls, at: datetime, grace: float = 0.0) -> Self:
        return cls(at.timestamp(), grace)

    def passed(self, now: float) -> bool:
        return now >= self.at

    def remaining(self, now: float) -> float:
        """Return the seconds until the deadline; negative after the deadline."""
        return self.at - now

    def grace_remaining(self, now: float) -> float:
        """Return the seconds until the grace period ends, which is `grace` seconds after the deadline.

        At the end of the grace period, requests that are still in flight are cancelled.
        """
        return self.at + self.grace - now
