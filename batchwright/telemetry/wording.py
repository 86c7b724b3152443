"""How a series is written in Prometheus' text format: its name, labels and numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

INFINITE = "+Inf"


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Place(NamedTuple):
    """A series: its family's name, and what its labels say."""

    name: str
    labels: dict[str, str]

    def head(self, suffix: str = "", **more: str) -> str:
        """A line up to its number."""
        said = ",".join(f'{label}="{_escaped(value)}"' for label, value in {**self.labels, **more}.items())
        return f"{self.name}{suffix}{{{said}}} " if said else f"{self.name}{suffix} "


def with_room(heads: Sequence[str], last: str) -> list[str]:
    """Lines with room for a number at every second place: counts, and at the end a sum."""
    pieces: list[str] = []
    end = ""
    for head in heads:
        pieces += [end + head, ""]
        end = ".0\n"
    return [*pieces, end + last, "", "\n"]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def in_words(value: float) -> str:
    """As Prometheus reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else INFINITE if value > 0 else "-Inf"
