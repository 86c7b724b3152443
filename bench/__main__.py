"""`python -m bench` (`make bench`): every target with what was measured."""

import tempfile
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.machine import commit, describe
from bench.options import Options
from bench.results import Report, SectionResult
from bench.section import Section
from bench.sections import SECTIONS
from bench.table import summary, table

RESULTS = Path(__file__).parent / "results"
_PEERS_PYTHON = Path(__file__).parents[1] / ".venv/.tools/peers/bin/python"
_NAMES = ", ".join(section.name for section in SECTIONS)


def run(
    only: Annotated[list[str] | None, typer.Option(help=f"A section; repeatable: {_NAMES}.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each; fewer where its time is over.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: is all in order?")] = False,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="The slow ones too.")] = True,
    minutes: Annotated[float, typer.Option(help="No section begins that could end later.")] = 20.0,
    json: Annotated[Path | None, typer.Option(help="Where the figures go; else bench/results/.")] = None,
) -> None:
    """Measure everything beside its yardstick, on this machine, now."""
    chosen = _chosen(only or [])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-", ignore_cleanup_errors=True) as name:
        peers = _PEERS_PYTHON if _PEERS_PYTHON.exists() else None
        options = Options(Path(name), rounds, quick, with_peers, peers)
        found: list[SectionResult] = []
        for section in chosen:
            left = minutes * 60 - (time.monotonic() - started)
            found.append(_measured(section, options, left))
        report = Report(
            at=datetime.now().astimezone().isoformat(timespec="seconds"),
            commit=commit(),
            quick=quick,
            rounds=rounds,
            seconds=round(time.monotonic() - started, 1),
            machine=describe(peers),
            sections=found,
        )
    print(summary(report))
    print(f"\nall figures: {_write(report, json)}")
    if any(section.error for section in found):
        raise typer.Exit(1)


def _chosen(names: list[str]) -> list[Section]:
    unknown = set(names) - {section.name for section in SECTIONS}
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are only {_NAMES}")
    return [section for section in SECTIONS if not names or section.name in names]


def _measured(section: Section, options: Options, seconds_left: float) -> SectionResult:
    """A section that fails takes no other with it."""
    print(f"\n{section.title} ({section.name})", flush=True)
    if not options.quick and seconds_left < section.minutes * 60:
        error = "not measured: the time was over"
        print(f"  {error}", flush=True)
        return SectionResult(section.name, section.title, section.setting, 0.0, [], error)
    started, error = time.monotonic(), ""
    try:
        figures = section.measure(options)
    except (Exception, SystemExit) as problem:
        traceback.print_exc()
        figures, error = [], f"{type(problem).__name__}: {problem}"
    seconds = round(time.monotonic() - started, 1)
    result = SectionResult(section.name, section.title, section.setting, seconds, figures, error)
    print(table(figures), f"\n  {seconds:.0f} s", flush=True)
    return result


def _write(report: Report, path: Path | None) -> Path:
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
