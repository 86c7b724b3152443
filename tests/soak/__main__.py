"""`python -m tests.soak --lines 1000000` (`make soak`): runs one very large batch and checks bounds.

It prints a table, and exits with 1 if a bound is exceeded.
"""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.soak.run import Measured, soak

MOST_MIB = 256.0
MOST_EVENTS = 10_000


def run(
    lines: Annotated[int, typer.Option(min=1, help="Of the batch.")] = 1_000_000,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 3,
) -> None:
    """Run one batch of very many lines.

    Check all lines, their order, memory, and the size of workflow histories.
    """
    measured = asyncio.run(soak(lines, workers))
    console = Console()
    console.print(table(measured))
    broken = broken_bounds(measured)
    for sentence in broken:
        console.print(f"BROKEN: {sentence}", markup=False)
    raise typer.Exit(1 if broken else 0)


def table(measured: Measured) -> Table:
    found = Table(title=f"one batch of {measured.lines:,} lines")
    found.add_column("what")
    found.add_column("measured", justify="right")
    found.add_row("input", f"{measured.input_bytes / 1024 / 1024:.0f} MiB")
    found.add_row("ended as", f"{measured.status}, {measured.completed:,} completed")
    found.add_row("requests sent", f"{measured.requests:,}")
    found.add_row("lines/s, from creation to end", f"{measured.rate:,.0f}")
    for phase in ("ingesting", "running", "finalizing"):
        found.add_row(f"{phase}, seconds", f"{getattr(measured, phase):,.0f}")
    for status, peaks in measured.peaks.items():
        found.add_row(f"MiB a worker, peaks until {status} ends", " / ".join(f"{peak:.0f}" for peak in peaks))
    found.add_row("runs of workflows", str(len(measured.runs)))
    found.add_row("events of the longest run", f"{max(measured.runs, default=0):,}")
    return found


def broken_bounds(measured: Measured) -> list[str]:
    """Return a sentence for each exceeded bound."""
    bounds = {
        f"it ended as {measured.status}": measured.status == "completed",
        f"{measured.completed:,} lines completed": measured.completed == measured.lines,
        f"only {measured.in_order:,} lines are in order": measured.in_order == measured.lines,
        f"{measured.requests:,} requests were sent": measured.requests == measured.lines,
        f"a worker took more than {MOST_MIB:.0f} MiB": _most(measured) < MOST_MIB,
        f"a run had more than {MOST_EVENTS:,} events": 0 < max(measured.runs, default=0) < MOST_EVENTS,
    }
    return [sentence for sentence, holds in bounds.items() if not holds]


def _most(measured: Measured) -> float:
    return max((peak for peaks in measured.peaks.values() for peak in peaks), default=0.0)


if __name__ == "__main__":
    typer.run(run)
