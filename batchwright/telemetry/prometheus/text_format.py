"""Produces the Prometheus text format. Names and labels are formatted once.

Numbers are formatted at each request for /metrics.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import orjson

INFINITY = "+Inf"
NUMBER_PLACEHOLDER = "\ud800"  # a lone surrogate: no text that can be encoded contains it


class MetricSample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class SeriesId(NamedTuple):
    """The identity of a series: its metric name and its labels."""

    name: str
    labels: dict[str, str]

    def line(self, suffix: str = "", number: str = NUMBER_PLACEHOLDER, **more: str) -> str:
        """Return one line of text for the series, in Prometheus text format. The labels are sorted by name.

        Args:
            suffix: end of the metric name, such as `_bucket`.
            number: text to use as the value; by default a placeholder.
            more: additional labels.
        """
        labels = sorted({**self.labels, **more}.items())
        label_text = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
        head = f"{self.name}{suffix}{{{label_text}}} " if labels else f"{self.name}{suffix} "
        return f"{head}{number}\n"


class TextTemplate:
    """A text with placeholders for numbers. A call of `fill` quickly replaces all placeholders."""

    def __init__(self, text: str) -> None:
        """Split the text at its placeholders. Each NUMBER_PLACEHOLDER in `text` stands for one number.

        Raises:
            UnicodeEncodeError: a label value contains a character that UTF-8 cannot represent.
        """
        between = [part.encode() for part in text.split(NUMBER_PLACEHOLDER)]
        self._pieces = [b""] * (2 * len(between) - 1)
        self._pieces[::2] = between

    def fill(self, numbers: Sequence[float]) -> bytes:
        """Return the text with `numbers` in place of the placeholders, in the same order."""
        self._pieces[1::2] = _format_numbers(numbers)
        return b"".join(self._pieces)


def _format_numbers(numbers: Sequence[float]) -> list[bytes]:
    """Return each number as the shortest text from which exactly this number can be read back."""
    formatted = orjson.dumps(numbers)[1:-1]
    if b"n" in formatted:  # null: JSON has no infinity and no NaN
        return [orjson.dumps(n) if math.isfinite(n) else _format_special(n) for n in numbers]
    return formatted.split(b",") if formatted else []


def _format_special(number: float) -> bytes:
    return b"NaN" if math.isnan(number) else INFINITY.encode() if number > 0 else b"-Inf"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
