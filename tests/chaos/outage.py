"""`python -m tests.chaos.outage --seconds 600` (`make outage`): lets one of two models answer only 503
for a while.
"""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, Stack, dev

BROKEN, WELL = MODELS[:2]
_LINES = 200  # of a model in a batch
_AFTER_SECONDS = 120.0  # for the broken model's lines once it answers again
_PAUSE_SECONDS = 5.0


@dataclass
class Report:
    """Measured times in seconds, and counts.

    Attributes:
        before: durations of batches of the working model before the outage.
        meanwhile: durations of such batches during the outage.
        until_done: time from the end of the outage to the end of the batch that uses the broken model.
        requests: number of requests to the broken model during the outage.
        failed: number of lines that failed.
    """

    before: list[float] = field(default_factory=list[float])
    meanwhile: list[float] = field(default_factory=list[float])
    broken_for: float = 0.0
    until_done: float = 0.0
    requests: int = 0
    failed: int = 0

    @property
    def broken_claims(self) -> list[str]:
        claims = {
            f"{self.failed} lines failed": self.failed == 0,
            "the other model's batches were held up": median(self.meanwhile) < 3 * median(self.before),
        }
        return [claim for claim, held in claims.items() if not held]


async def outage(stack: Stack, seconds: float) -> Report:
    """Break one of two models for `seconds` while a batch uses both. Return the measurements.

    Raises:
        TimeoutError: the batch did not end in time after the outage.
    """
    report = Report()
    async with stack.client() as client:
        for _ in range(5):
            report.before.append(await _seconds_of_one(stack))
        await stack.faults(model=BROKEN, kind="503", rate=1.0)
        lines = chat_lines((BROKEN, WELL), each=_LINES)
        began = time.monotonic()
        batch = await submit(client, lines)
        await settled(client, batch.id, _LINES)
        while time.monotonic() - began < seconds:
            report.meanwhile.append(await _seconds_of_one(stack))
            await asyncio.sleep(min(_PAUSE_SECONDS, max(0.0, began + seconds - time.monotonic())))
        well = (len(report.before) + len(report.meanwhile) + 1) * _LINES  # each sent once
        report.requests = sum((await stack.requests_by_id()).values()) - well
        await stack.heal()
        report.broken_for = time.monotonic() - began
        done = await ended(client, batch.id, _AFTER_SECONDS)
        report.until_done = time.monotonic() - began - report.broken_for
        await check_conservation(client, done, lines)
        assert done.request_counts is not None
        report.failed = done.request_counts.failed
    return report


async def _seconds_of_one(stack: Stack) -> float:
    """Run a batch of the working model, and return the seconds from its creation to its end."""
    began = time.monotonic()
    async with stack.client() as client:
        batch = await submit(client, chat_lines((WELL,), each=_LINES))
        done = await ended(client, batch.id, _AFTER_SECONDS)
        assert done.request_counts is not None
        assert done.request_counts.completed == _LINES
    return time.monotonic() - began


def table(report: Report) -> Table:
    found = Table(title="one of two models answers 503 to everything")
    found.add_column("what")
    found.add_column("measured", justify="right")
    rows = {
        "seconds without an answer": f"{report.broken_for:.0f}",
        "lines that failed": f"{report.failed}",
        "requests to the broken model meanwhile": f"{report.requests:,} for {_LINES} lines",
        "seconds until its lines were done afterwards": f"{report.until_done:.1f}",
        "batches of the other model meanwhile": f"{len(report.meanwhile)}",
        "seconds of such a batch, before / meanwhile": (
            f"{median(report.before):.1f} / {median(report.meanwhile):.1f}"
        ),
    }
    for name, value in rows.items():
        found.add_row(name, value)
    return found


def run(seconds: Annotated[float, typer.Option(min=10, help="How long the model is broken.")] = 600) -> None:
    """Break one of two models, and check that no line fails and that the other model's batches take no
    longer.
    """
    with dev() as stack:
        report = asyncio.run(outage(stack, seconds))
    console = Console()
    console.print(table(report))
    for sentence in report.broken_claims:
        console.print(f"BROKEN: {sentence}", markup=False)
    raise typer.Exit(1 if report.broken_claims else 0)


if __name__ == "__main__":
    typer.run(run)
