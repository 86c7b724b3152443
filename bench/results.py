"""What a run of the benchmark found: figures, each the median of its rounds, some with a target."""

from statistics import median
from typing import Literal

import msgspec


class Target(msgspec.Struct, frozen=True):
    """`aim` is where it should go, `limit` where it has to be."""

    limit: float
    kind: Literal["at least", "at most"] = "at most"
    aim: float | None = None

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.kind == "at least" else value <= self.limit


class Figure(msgspec.Struct, frozen=True):
    """`rounds` holds what each round measured; `unit` is empty for a ratio. `how` says what it is of."""

    key: str
    what: str
    rounds: list[float]
    unit: str = ""
    target: Target | None = None
    how: str = ""

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def is_met(self) -> bool | None:
        """None where there is no target."""
        return None if self.target is None else self.target.met_by(self.value)

    @property
    def shown(self) -> str:
        return _with_unit(self.value, self.unit)

    @property
    def wanted(self) -> str:
        if self.target is None:
            return ""
        text = f"{self.target.kind} {_with_unit(self.target.limit, self.unit)}"
        return text if self.target.aim is None else f"{text}, aim {_with_unit(self.target.aim, self.unit)}"

    @property
    def verdict(self) -> str:
        """`met`, or by what factor it falls short."""
        if self.target is None:
            return ""
        if self.is_met:
            return "met"
        below, above = sorted((self.value, self.target.limit))
        return f"short by {above / below:.2f}x" if below > 0 else "short"


class SectionResult(msgspec.Struct, frozen=True):
    """`error` says why there are no figures, or not all."""

    name: str
    title: str
    setting: str
    seconds: float
    figures: list[Figure]
    error: str = ""


class Machine(msgspec.Struct, frozen=True):
    cores: int
    memory_gib: float
    processor: str
    system: str
    versions: dict[str, str]


class Report(msgspec.Struct, frozen=True):
    """The JSON of a run. `quick`: small sizes, whose figures judge nothing."""

    at: str
    commit: str
    quick: bool
    rounds: int
    seconds: float
    machine: Machine
    sections: list[SectionResult]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """Three figures that count: 0.123, 1.23, 12.3, 1,234."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
