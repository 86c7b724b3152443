"""`python -m bench.large` (`make large LINES=5000000`): memory and time per line, for two sizes of a batch.

The smaller batch has a million lines. `--lines` sets the size of the larger batch. The program measures
ingestion (reading the input) and finalization (writing the output files), each in a process of its own.
Sending is not measured, because its memory does not depend on the number of lines: a slice (part of a batch)
has at most 1,024 lines.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from bench.activities.finalization import Finalized
from bench.activities.harness import in_a_process
from bench.activities.ingestion import Ingested
from bench.machine import commit, describe, now
from bench.results import number
from bench.sections.ingestion import write_input

_MILLION = 1_000_000
_LINE_BYTES = 220
_MIB = 1024 * 1024


class _Measured(NamedTuple):
    step: str
    lines: int
    grown_mib: float
    seconds: float
    cpu_seconds: float

    @property
    def bytes_per_line(self) -> float:
        return self.grown_mib * _MIB / self.lines


def run(
    lines: Annotated[int, typer.Option(min=1, help="Number of lines of the larger batch.")] = 2 * _MILLION,
    line_bytes: Annotated[int, typer.Option(min=200, help="Size of a line.")] = _LINE_BYTES,
    million: Annotated[int, typer.Option(min=1, help="Number of lines of the smaller batch.")] = _MILLION,
    folder: Annotated[Path | None, typer.Option(help="Where the files are written. [temporary]")] = None,
) -> None:
    """Measure ingestion and finalization of two batches, and print the memory and the time for a line."""
    found: list[_Measured] = []
    for count in (million, lines):
        with tempfile.TemporaryDirectory(prefix="batchwright-large-", dir=folder) as name:
            found += _measure(Path(name), count, line_bytes)
            for one in found[-2:]:
                print(_row(one, found), flush=True)
    machine = describe(None)
    print(f"\n{now()}, commit {commit()}, {machine.cores} cores ({machine.processor})")
    print("\n| | lines | memory above an idle worker | a line | time a line | of the smaller batch ", end="")
    print("| CPU time a line | of the smaller batch |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    print("\n".join(_row(one, found) for one in found))


def _row(one: _Measured, found: list[_Measured]) -> str:
    smaller = next(other for other in found if other.step == one.step)
    row = f"| {one.step} | {one.lines:,} | {number(one.grown_mib)} MiB | {number(one.bytes_per_line)} B |"
    for total, of_smaller in ((one.seconds, smaller.seconds), (one.cpu_seconds, smaller.cpu_seconds)):
        each = total / one.lines
        row += f" {number(each * 1e6)} us | {number(each / (of_smaller / smaller.lines))} |"
    return row


def _measure(folder: Path, count: int, line_bytes: int) -> list[_Measured]:
    first, second = folder / "ingested", folder / "finalized"
    for place in (first, second):
        place.mkdir()
    write_input(first, count, line_bytes)
    ingested = in_a_process("bench.activities.ingestion", Ingested, first, "prefix")
    (first / "input").rename(second / "input")
    shutil.rmtree(first)
    command = [sys.executable, "-m", "bench.activities.finalization", "settle", str(second), "100"]
    subprocess.run(command, check=True)
    finalized = in_a_process("bench.activities.finalization", Finalized, "finalize", second)
    return [
        _Measured("ingestion", count, ingested.grown_mib, ingested.seconds, ingested.cpu_seconds),
        _Measured("finalization", count, finalized.grown_mib, finalized.seconds, finalized.cpu_seconds),
    ]


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="python -m bench.large")


if __name__ == "__main__":
    main()
