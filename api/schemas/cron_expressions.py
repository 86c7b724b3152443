"""Check the cron expressions of schedules: five fields, from which Temporal computes the times."""

import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_CRON_CHARACTERS = 256
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}  # days of the months that have less than 31
_EXAMPLE = "such as '0 2 * * *' for 02:00 every day"


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    names: Mapping[str, int] = {}


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_ITEM = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/([0-9]{1,4}))?", re.ASCII)


def check_cron(text: str) -> str:
    """Check a cron expression, and return it with single spaces between its fields.

    Each field is `*` or a list of numbers and ranges, each with an optional step: `*/15`, `1-5`, `8,12,18`.
    Months and days of the week may be names, such as `mon-fri`.

    Raises:
        ValueError: the text is not a cron expression, or it never matches a time. The message is the reason,
            as a part of a sentence for the client.
    """
    if len(text) > MAX_CRON_CHARACTERS:
        raise ValueError(f"it has over {MAX_CRON_CHARACTERS} characters")
    parts = text.split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise ValueError(f"expected five fields ({names}), {_EXAMPLE}, but got {len(parts)}")
    _, _, days, months, _ = (_values(part, field) for part, field in zip(parts, _FIELDS, strict=True))
    if parts[2] != "*" and parts[4] != "*":
        # Cron runs on days that match either field, Temporal on days that match both.
        raise ValueError("the day of the month and the day of the week cannot both be set; one must be '*'")
    if min(days) > max(_LONGEST.get(month, 31) for month in months):
        raise ValueError("no month that it names has such a day, so it would never run")
    return " ".join(parts)


def _values(text: str, field: _Field) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f"the {field.name} '{text}' is not valid, {_EXAMPLE}")
        whole, first, last, step = match.groups()
        low = field.first if whole == "*" else _number(first, field)
        # As in cron, `5/15` is the range from 5 to the end with a step of 15.
        high = low if last is None and step is None and whole != "*" else field.last
        high = _number(last, field) if last is not None else high
        if low > high:
            raise ValueError(f"the {field.name} '{item}' runs backwards; write two ranges instead")
        if step is not None and not 1 <= int(step) <= field.last:
            raise ValueError(f"the step in the {field.name} '{item}' must be from 1 to {field.last}")
        found.update(range(low, high + 1, int(step or 1)))
    return found


def _number(text: str, field: _Field) -> int:
    number = field.names.get(text.lower(), int(text) if text.isdecimal() else -1)
    if not field.first <= number <= field.last:
        raise ValueError(f"the {field.name} '{text}' is not from {field.first} to {field.last}")
    return number
