"""How a series is written in Prometheus' text format: its name, labels and numbers."""

import math
from typing import NamedTuple

INFINITE = "+Inf"
NUMBER = "%a"  # where a number goes in a form: as Python shows it, which is as Prometheus reads it


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Place(NamedTuple):
    """A series: its family's name, and what its labels say."""

    name: str
    labels: dict[str, str]

    def line(self, suffix: str = "", number: str = NUMBER, **more: str) -> str:
        """As a form: `number` is where its number goes, whatever labels say. Labels are in order of name."""
        labels = sorted({**self.labels, **more}.items())
        said = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
        head = f"{self.name}{suffix}{{{said}}} " if said else f"{self.name}{suffix} "
        return f"{literal(head)}{number}\n"


def literal(text: str) -> str:
    """As a part of a form that is shown as it is."""
    return text.replace("%", "%%")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Endless(float):
    """Shows itself as Prometheus reads it."""

    def __repr__(self) -> str:
        return "NaN" if math.isnan(self) else INFINITE if self > 0 else "-Inf"


def in_words(value: float) -> float:
    """A number that a form may take."""
    return value if math.isfinite(value) else _Endless(value)
