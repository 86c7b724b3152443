"""`python -m bench.page RESULT.json`: docs/performance.md and its plot from a run's JSON, which it keeps."""

import sys
from pathlib import Path

import msgspec

from bench.plot import bars
from bench.results import Figure, Report, SectionResult, number

_ROOT = Path(__file__).parents[1]
_JSON = _ROOT / "docs" / "performance.json"
_PAGE = _ROOT / "docs" / "performance.md"
_PLOT = _ROOT / "docs" / "performance.svg"
_NOTES = Path(__file__).parent / "notes.md"

_INTRO = """\
What Batchwright adds to inference, measured by `make bench` beside what a user would write or install
instead. Everything runs on one machine: the simulated backend, Temporal, PostgreSQL, API and workers share
its cores. Figures are medians of the rounds, ratios are to what ran in the same minute. The raw data is
[performance.json](performance.json); how it is measured, and against whom, is
[decision 0023](decisions/0023-benchmark.md)."""
_QUICK = """\

> This was a run of `--quick`: sizes so small that starting weighs more than running, on a machine with
> other work. Its figures show that the benchmark runs; they judge nothing."""


def pages() -> dict[Path, str]:
    """The generated files and their text, from the JSON that is kept."""
    report = read(_JSON)
    return {_PAGE: text(report, _NOTES.read_text()), _PLOT: plot(report)}


def read(path: Path) -> Report:
    """Raises msgspec.ValidationError where the file is no report."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def text(report: Report, notes: str) -> str:
    parts = ["# Performance", "<!-- made by `make docs` from performance.json -->", _INTRO + _where(report)]
    if report.quick:
        parts[-1] += "\n" + _QUICK
    parts += ["![requests a second, beside the alternatives](performance.svg)", _targets(report)]
    parts += [_section(section) for section in report.sections]
    parts.append("## What this means\n\n" + notes.strip())
    return "\n\n".join(parts) + "\n"


def plot(report: Report) -> str:
    rates = [figure for figure in report.figures if figure.key.startswith("rate.")]
    return bars(
        "Requests a second, 64 in flight, a backend that answers at once (logarithmic)",
        [(figure.what.partition(", ")[2], figure.value) for figure in rates],
    )


def _where(report: Report) -> str:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"\n\nMeasured {report.at}, commit `{report.commit}`, {report.rounds} rounds, "
        f"{report.seconds / 60:.0f} minutes. {machine.cores} cores ({machine.processor}), "
        f"{number(machine.memory_gib)} GiB, {machine.system}. {versions}."
    )


def _targets(report: Report) -> str:
    judged = [figure for figure in report.figures if figure.target is not None]
    met = sum(figure.is_met is True for figure in judged)
    rows: list[str] = []
    for section in report.sections:
        rows += [
            f"| {section.title}: {figure.what} | {figure.shown} | {figure.wanted} | {_verdict(figure)} |"
            for figure in section.figures
            if figure.target is not None
        ]
    head = f"## Targets\n\n{met} of {len(judged)} are met.\n\n| what | measured | target | |"
    return "\n".join((head, "|---|---:|---|---|", *rows))


def _verdict(figure: Figure) -> str:
    return figure.verdict if figure.is_met else f"**{figure.verdict}**"


def _section(section: SectionResult) -> str:
    head = f"## {section.title}\n\n{section.setting}"
    if section.error:
        head += f"\n\n**{section.error}**"
    if not section.figures:
        return head
    rows = [
        f"| {figure.what} | {figure.shown} | {number(min(figure.rounds))} to {number(max(figure.rounds))} "
        f"| {len(figure.rounds)} |"
        for figure in section.figures
    ]
    return f"{head}\n\n| | median | all rounds | rounds |\n|---|---:|---|---:|\n" + "\n".join(rows)


def main() -> None:
    if sys.argv[1:]:
        report = read(Path(sys.argv[1]))
        _JSON.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    for path, content in pages().items():
        path.write_text(content)
        print(path.relative_to(_ROOT))


if __name__ == "__main__":
    main()
