"""`python -m tests.chaos --seconds 600 --seed 1` (`make chaos`): disturbs a running stack and checks its
promises.

It prints a table, and exits with 1 if a promise was broken. With `--hours 8` (`make chaos HOURS=8`) it makes
one run after another, each with the next seed, until the time is over. It adds a record of each run to
`tests/chaos/ledger.jsonl`.
"""

import asyncio
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.chaos import unattended
from tests.chaos.page import percentile
from tests.chaos.run import Report, chaos


def run(
    seconds: Annotated[float, typer.Option(min=10, help="How long it is disturbed.")] = 600,
    seed: Annotated[
        int | None, typer.Option(help="Default: 1; with --hours the next one of the ledger.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Kept with all logs; else it is gone at the end.")] = None,
    hours: Annotated[float, typer.Option(help="More disturbances, seed after seed, for the ledger.")] = 0,
) -> None:
    """Kill, freeze and cut parts of a running stack, and check that nothing is lost or done twice."""
    begun = time.monotonic()

    def report_progress(what: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {what}", file=sys.stderr)

    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # of requests that we cut ourselves
    if hours:
        kept = unattended.run_for(hours, seconds, seed, report_progress)
        raise typer.Exit(0 if kept else 1)
    report = asyncio.run(chaos(1 if seed is None else seed, seconds, report_progress, data))
    console = Console()
    console.print(table(report))
    for sentence in report.broken:
        console.print(f"BROKEN: {sentence}", markup=False)
    raise typer.Exit(1 if report.broken else 0)


def table(report: Report) -> Table:
    found = Table(title=f"seed {report.seed}, {report.seconds:g} s, objects: {report.where}")
    found.add_column("what")
    found.add_column("count", justify="right")
    for kind, count in sorted(report.disturbed.items()):
        found.add_row(kind.value, str(count))
    found.add_section()
    endings = Counter(verdict.status for verdict in report.verdicts)
    entries = Counter(verdict.seen.submission.door for verdict in report.verdicts)
    answers = [recovery.answer for recovery in report.recoveries]
    median, worst = percentile(answers, 50), percentile(answers, 99)
    rows = {
        "disturbances": f"{report.disturbed.total()}",
        "processes killed": f"{report.kills}",
        "batches": ", ".join(f"{count} {status}" for status, count in sorted(endings.items())),
        "doors": ", ".join(f"{count} {door}" for door, count in sorted(entries.items())),
        "lines": f"{sum(verdict.lines for verdict in report.verdicts):,}",
        "lost": f"{sum(verdict.lost for verdict in report.verdicts)}",
        "doubled": f"{sum(verdict.doubled for verdict in report.verdicts)}",
        "sent again after they had settled": f"{report.repeated}",
        "answered more than once": f"{report.answered_again} of {report.may_repeat} that might have been",
        "seconds until answers continue, p50 / p99": f"{median:.1f} / {worst:.1f}",
    }
    for name, value in rows.items():
        found.add_row(name, value)
    return found


if __name__ == "__main__":
    typer.run(run)
