"""Results of a benchmark run: measured values (figures) with their targets, and tables for a terminal."""

from statistics import median
from typing import Literal

import msgspec


class Target(msgspec.Struct, frozen=True):
    """The target for a measured value.

    Attributes:
        limit: lowest allowed value if `kind` is `at least`; highest allowed value if `kind` is `at most`.
        aim: stricter limit that is desired but not required; None if there is no stricter limit.
    """

    limit: float
    kind: Literal["at least", "at most"] = "at most"
    aim: float | None = None

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.kind == "at least" else value <= self.limit


class Figure(msgspec.Struct, frozen=True):
    """A figure: something that the benchmark measures in several rounds, such as a rate.

    Attributes:
        key: identifier, such as `send.of_bare`.
        what: short description for tables.
        rounds: the measured values of all rounds. Their median is the value of the figure.
        unit: unit of the values; empty for a ratio.
        how: note about the measurement, as text; may be empty.
    """

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
        """True if the value meets the target, False if it does not, None if the figure has no target."""
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
        """Text for a table about the target: `met`, or by which factor it is missed, as in `short by 1.20x`.

        The text is empty if the figure has no target.
        """
        if self.target is None:
            return ""
        if self.is_met:
            return "met"
        below, above = sorted((self.value, self.target.limit))
        return f"short by {above / below:.2f}x" if below > 0 else "short"


class SectionResult(msgspec.Struct, frozen=True):
    """Measured values (figures) of one section (part) of the benchmark.

    Attributes:
        error: why the section failed or was not run; empty if the section was measured.
        at: time of the measurement.
        commit: the measured version.
        load: load average of the machine in the last minute before the measurement.
    """

    name: str
    title: str
    setting: str
    seconds: float
    figures: list[Figure]
    error: str = ""
    at: str = ""
    commit: str = ""
    load: float | None = None

    @property
    def command(self) -> str:
        return f"python -m bench --only {self.name}"


class Machine(msgspec.Struct, frozen=True):
    cores: int
    memory_gib: float
    processor: str
    system: str
    versions: dict[str, str]


class BenchmarkReport(msgspec.Struct, frozen=True):
    """Content of the JSON file of a benchmark run.

    If `quick` is True, the measured values have no meaning, because the inputs of the run were too small.
    """

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
    """Return a number with about three significant digits, as in 0.123, 1.23, 12.3 and 1,234."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of `values`. `share` is from 0 to 1, for example 0.95 for the 95th percentile."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def figure_table(figures: list[Figure]) -> str:
    rows = [(figure.what, figure.shown, figure.wanted, figure.verdict) for figure in figures]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = (
        "  ".join((what.ljust(widths[0]), shown.rjust(widths[1]), wanted.ljust(widths[2]), verdict)).rstrip()
        for what, shown, wanted, verdict in rows
    )
    return "\n".join(f"  {line}" for line in lines)


def summary_table(report: BenchmarkReport) -> str:
    """Return a table of all figures that have a target, with the number of targets that are met.

    Below the table are the errors of the sections that failed or were not run.
    """
    judged = [figure for figure in report.figures if figure.target is not None]
    met = sum(figure.is_met is True for figure in judged)
    failed = [f"  {section.name}: {section.error}" for section in report.sections if section.error]
    head = f"\n{met} of {len(judged)} targets met, in {report.seconds / 60:.1f} minutes"
    return "\n".join((head, figure_table(judged), *failed))
