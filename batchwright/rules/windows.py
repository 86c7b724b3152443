"""Completion windows (R7): what a client may ask for, in seconds."""

import re

from batchwright.contracts.openai import Profile

DEFAULT_WINDOW = "24h"
DAY_SECONDS = 86_400
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
_WINDOW = re.compile(r"([1-9][0-9]{0,8})([smhd])", re.ASCII)


def window_seconds(text: str | None, profile: Profile, shortest: int, longest: int) -> int:
    """The window `text` asks for; `24h` always may, other windows only in profile relaxed and within bounds.

    `shortest` and `longest` are in seconds. None asks for the default (S1-89).

    Raises:
        ValueError: the message is for the client.
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


def window_text(seconds: int) -> str:
    """`seconds` in the largest unit that leaves no rest; hours rather than one day, as OpenAI writes it."""
    for unit in ("d", "h", "m"):
        size = _UNIT_SECONDS[unit]
        if seconds % size == 0 and seconds > size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
