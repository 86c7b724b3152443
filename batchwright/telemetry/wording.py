"""How series are written in Prometheus' text format: names and labels once, numbers at each scrape."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import orjson

INFINITE = "+Inf"
NUMBER = "\ud800"  # where a number goes: no text that can be written has it


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Place(NamedTuple):
    """A series: its family's name, and what its labels say."""

    name: str
    labels: dict[str, str]

    def line(self, suffix: str = "", number: str = NUMBER, **more: str) -> str:
        """`number` is where its number goes, whatever labels say. Labels are in order of name."""
        labels = sorted({**self.labels, **more}.items())
        said = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
        head = f"{self.name}{suffix}{{{said}}} " if said else f"{self.name}{suffix} "
        return f"{head}{number}\n"


class Form:
    """A text with room for numbers, which are written together: one by one they would take Python longer.

    What is written stays until it is written anew: its memory need not be got from the system each time.
    """

    def __init__(self, said: str) -> None:
        """`said` has a NUMBER at the place of each. Raises UnicodeEncodeError for what no text can have."""
        between = [part.encode() for part in said.split(NUMBER)]
        self._pieces = [b""] * (2 * len(between) - 1)
        self._pieces[::2] = between

    def filled(self, numbers: Sequence[float]) -> bytes:
        """As many numbers as it has places."""
        self._pieces[1::2] = _written(numbers)
        return b"".join(self._pieces)


def _written(numbers: Sequence[float]) -> list[bytes]:
    """Each the shortest that is read as that number."""
    written = orjson.dumps(numbers)[1:-1]
    if b"n" in written:  # null: JSON has no words for it
        return [orjson.dumps(number) if math.isfinite(number) else _endless(number) for number in numbers]
    return written.split(b",") if written else []


def _endless(number: float) -> bytes:
    return b"NaN" if math.isnan(number) else INFINITE.encode() if number > 0 else b"-Inf"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
