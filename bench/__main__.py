"""`python -m bench` (`make bench`): runs the benchmark and compares measured values with their targets."""

import os
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.machine import commit, describe, now
from bench.results import BenchmarkReport, SectionResult, figure_table, summary_table
from bench.section import Section, SectionOptions
from bench.sections import SECTIONS

RESULTS = Path(__file__).parent / "results"
_PEERS_PYTHON = Path(__file__).parents[1] / ".venv/.tools/peers/bin/python"
_NAMES = ", ".join(section.name for section in SECTIONS)


def run(
    only: Annotated[list[str] | None, typer.Option(help=f"A section; repeatable: {_NAMES}.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of each section; fewer if its time is over.")
    ] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, to check that the benchmark works.")
    ] = False,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Include slow peers.")] = True,
    minutes: Annotated[float, typer.Option(help="Skip sections that could end later.")] = 52.0,
    json: Annotated[Path | None, typer.Option(help="File for the figures. [bench/results/]")] = None,
) -> None:
    """Measure all sections of the benchmark on this machine, and print which values meet their targets."""
    chosen = _chosen(only or [])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-", ignore_cleanup_errors=True) as name:
        peers = _PEERS_PYTHON if _PEERS_PYTHON.exists() else None
        options = SectionOptions(Path(name), rounds, quick, with_peers, peers)
        found: list[SectionResult] = []
        for section in chosen:
            left = minutes * 60 - (time.monotonic() - started)
            found.append(_measured(section, options, left))
        report = BenchmarkReport(
            at=now(),
            commit=commit(),
            quick=quick,
            rounds=rounds,
            seconds=round(time.monotonic() - started, 1),
            machine=describe(peers),
            sections=found,
        )
    print(summary_table(report))
    print(f"\nall figures: {_write(report, json)}")
    if any(section.error for section in found):
        raise typer.Exit(1)


def _chosen(names: list[str]) -> list[Section]:
    unknown = set(names) - {section.name for section in SECTIONS}
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are only {_NAMES}")
    return [section for section in SECTIONS if not names or section.name in names]


def _measured(section: Section, options: SectionOptions, seconds_left: float) -> SectionResult:
    """Run one section of the benchmark, and return its measured values (figures).

    If the section could take longer than `seconds_left`, the section is not run. A quick run ignores this
    limit. If the section was not run or has failed, the result has an error instead of figures.
    """
    print(f"\n{section.title} ({section.name})", flush=True)
    load, _, _ = os.getloadavg()
    result = partial(
        SectionResult, section.name, section.title, section.setting, at=now(), commit=commit(), load=load
    )
    if not options.quick and seconds_left < section.minutes * 60:
        error = "not measured: the time limit was reached"
        print(f"  {error}", flush=True)
        return result(0.0, [], error)
    started, error = time.monotonic(), ""
    try:
        figures = section.measure(options)
    except (Exception, SystemExit) as problem:
        traceback.print_exc()
        figures, error = [], f"{type(problem).__name__}: {problem}"
    seconds = round(time.monotonic() - started, 1)
    print(figure_table(figures), f"\n  {seconds:.0f} s", flush=True)
    return result(seconds, figures, error)


def _write(report: BenchmarkReport, path: Path | None) -> Path:
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{report.at.replace(':', '-')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return path


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench")


if __name__ == "__main__":
    main()
