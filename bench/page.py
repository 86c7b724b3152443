"""`python -m bench.page RESULT.json`: writes docs/performance.md and its plot from a benchmark's result.

If the result has only some sections (parts) of the benchmark, the other sections of the page stay as they
are.
"""

import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from bench.results import BenchmarkReport, Figure, SectionResult, number
from bench.sections import SECTIONS

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 760, 210, 80, 34, 44


_FIRST_COLOUR, _OTHER_COLOUR, _TEXT_COLOUR = "#2f7d5b", "#8a94a6", "#7a7f87"


def bar_chart(title: str, values: list[tuple[str, float]]) -> str:
    """Return a bar chart as SVG text. Its colours are readable on light and on dark pages.

    The scale is logarithmic, and starts at the power of ten below the smallest value.
    """
    height = _TOP + _ROW * max(len(values), 1) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="14" fill="{_TEXT_COLOUR}">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, ((name, value), length) in enumerate(zip(values, _lengths(values), strict=True)):
        y = _TOP + place * _ROW
        colour = _FIRST_COLOUR if place == 0 else _OTHER_COLOUR
        end = _LEFT + length + 8
        lines += [
            f'<text x="{_LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.0f}" height="24" rx="3" fill="{colour}"/>',
            f'<text x="{end:.0f}" y="{y + 17}">{number(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _lengths(values: list[tuple[str, float]]) -> list[float]:
    if not values:
        return []
    logs = [math.log10(max(value, 1e-9)) for _, value in values]
    start, end = math.floor(min(logs)), max(logs)
    room = _WIDTH - _LEFT - _RIGHT
    return [room * (log - start) / (end - start) if end > start else room for log in logs]


_ROOT = Path(__file__).parents[1]
JSON = _ROOT / "docs" / "performance.json"
_PAGE = _ROOT / "docs" / "performance.md"
_PLOT = _ROOT / "docs" / "performance.svg"
_NOTES = Path(__file__).parent / "notes.md"
_INTRO = """\
After reading this page you know what Batchwright costs, compared with what you would write or install
instead. `make bench` measures it, and the command under a section measures only that section. Everything
runs on one machine: the simulated backend, Temporal, PostgreSQL, API and workers share its cores. Figures are
medians of the rounds; ratios compare with a run in the same minute. Each section names its own date and
commit, and each row its number of rounds: some sections were measured later than the others. The raw data is
[performance.json](performance.json); [decision 0023](decisions/0023-benchmark.md) describes the method."""

_TARGETS = """\
A measure with several scenarios has one row, that of the worst scenario. The others are in the table of
its section."""
# Figures of the section about tracing: the cost of a request with a span, and how many spans were lost.
_ALL_SPANS, _LOST_SPANS = "tracing.on", "tracing.lost"


_QUICK = """\

> This was a run with `--quick`: its sizes are so small that the start takes longer than the work, and the
> machine had other work. It shows that the benchmark runs; its figures have no meaning."""


def pages() -> dict[Path, str]:
    """Return the text of each page that is generated from docs/performance.json, by path."""
    report = read(JSON)
    return {_PAGE: text(report, _NOTES.read_text()), _PLOT: plot(report)}


def read(path: Path) -> BenchmarkReport:
    """Return the result of a benchmark run from its JSON file.

    Raises:
        msgspec.ValidationError: the file is not a result of a benchmark run.
    """
    return msgspec.json.decode(path.read_bytes(), type=BenchmarkReport)


def text(report: BenchmarkReport, notes: str) -> str:
    parts = ["# Performance", "<!-- made by `make docs` from performance.json -->", _INTRO + _where(report)]
    if report.quick:
        parts[-1] += "\n" + _QUICK
    parts += ["![requests a second, beside the alternatives](performance.svg)", _targets(report)]
    parts += [_section(section) for section in report.sections]
    parts.append("## What this means\n\n" + notes.strip())
    return "\n\n".join(parts) + "\n"


def plot(report: BenchmarkReport) -> str:
    rates = [figure for figure in report.figures if figure.key.startswith("rate.")]
    return bar_chart(
        "Requests a second, 64 in flight, a backend that answers at once (logarithmic)",
        [(figure.what.partition(", ")[2], figure.value) for figure in rates],
    )


def _where(report: BenchmarkReport) -> str:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"\n\nThe last run of all sections ended {report.at}. Every section was measured on this machine: "
        f"{machine.cores} cores ({machine.processor}), "
        f"{number(machine.memory_gib)} GiB, {machine.system}. {versions}."
    )


def _targets(report: BenchmarkReport) -> str:
    judged = [(section.title, figure) for section in report.sections for figure in _judged(section)]
    met = sum(figure.is_met is True for _, figure in judged)
    rows = [
        f"| {title}: {figure.what} | {figure.shown} | {figure.wanted} | {_verdict(figure)} |"
        for title, figure in judged
    ]
    head = f"## Targets\n\n{met} of {len(judged)} are met. {_TARGETS}\n\n| what | measured | target | |"
    return "\n".join((head, "|---|---:|---|---|", *rows))


def _judged(section: SectionResult) -> list[Figure]:
    """Return the figures of a section that have a target, in their order.

    Figures of the same measure in several scenarios become one figure: the worst one, whose `what` then says
    so. The measure is the part of `what` before or after `: ` that such figures have in common, together
    with their target.
    """
    groups: dict[object, list[Figure]] = {}
    for figure in section.figures:
        if figure.target is not None:
            groups.setdefault(_measure(figure, section), []).append(figure)
    return [_worst(figures) for figures in groups.values()]


def _measure(figure: Figure, section: SectionResult) -> object:
    alike = [other for other in section.figures if other.target == figure.target]
    first, _, last = figure.what.partition(": ")
    for place, part in ((0, first), (2, last)):
        if part and sum(other.what.partition(": ")[place] == part for other in alike) > 1:
            return figure.target, place, part
    return figure.key, figure.what


def _worst(figures: list[Figure]) -> Figure:
    target = figures[0].target
    assert target is not None
    choose = min if target.kind == "at least" else max
    worst = choose(figures, key=lambda figure: figure.value)
    if len(figures) == 1:
        return worst
    return msgspec.structs.replace(worst, what=f"{worst.what} (the worst of {len(figures)} scenarios)")


def _verdict(figure: Figure) -> str:
    return figure.verdict if figure.is_met else f"**{figure.verdict}**"


def _section(section: SectionResult) -> str:
    head = f"## {section.title}\n\n{section.setting}\n\n"
    load = "" if section.load is None else f", on a machine with a load of {section.load:.1f} from other work"
    head += f"`{section.command}`, {section.at[:10]}, commit `{section.commit}`{load}."
    if section.error:
        head += f"\n\n**{section.error}**"
    if not section.figures:
        return head
    rows = [
        f"| {figure.what}{_loss(figure, section)} | {figure.shown} "
        f"| {number(min(figure.rounds))} to {number(max(figure.rounds))} | {len(figure.rounds)} |"
        for figure in section.figures
    ]
    return f"{head}\n\n| | median | all rounds | rounds |\n|---|---:|---|---:|\n" + "\n".join(rows)


def _loss(figure: Figure, section: SectionResult) -> str:
    """Return a remark for a figure that is too low because trace spans were lost; empty for all others."""
    lost = sum(other.value for other in section.figures if other.key == _LOST_SPANS)
    if figure.key != _ALL_SPANS or not lost:
        return ""
    return f" (too low: {lost:,.0f} spans of all rounds were lost, and a lost span is not sent)"


def merged(stored: BenchmarkReport, newer: BenchmarkReport) -> BenchmarkReport:
    """Combine a stored result of the benchmark with a newer result, and return the combined result.

    - If `newer` has all sections (parts of the benchmark) of `stored`, `newer` is returned unchanged.
    - Otherwise, the sections of `newer` replace the same sections of `stored`. The other sections stay as
      they are. The sections are in the order of the benchmark.

    Raises:
        SystemExit: a section of `newer` failed or was not run, or results of different machines would be
            combined.
    """
    if failed := [section.name for section in newer.sections if section.error]:
        raise SystemExit(f"not measured: {', '.join(failed)}")
    by_name = {section.name: section for section in (*stored.sections, *newer.sections)}
    if by_name.keys() == {section.name for section in newer.sections}:
        return newer
    if (stored.machine.cores, stored.machine.processor) != (newer.machine.cores, newer.machine.processor):
        raise SystemExit("the stored result is of another machine: measure all sections")
    order = [section.name for section in SECTIONS if section.name in by_name]
    return msgspec.structs.replace(stored, sections=[by_name[name] for name in order])


def main() -> None:
    if sys.argv[1:]:
        report = merged(read(JSON), read(Path(sys.argv[1])))
        JSON.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    for path, content in pages().items():
        path.write_text(content)
        print(path.relative_to(_ROOT))


if __name__ == "__main__":
    main()
