"""`make timing`: measures how soon batches end and how soon waiting reasons are shown.

It exits with 1 if a promised time is exceeded.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.run_folder import open_run_folder
from tests.timing.cancels import CANCELS
from tests.timing.deadlines import WINDOWS
from tests.timing.loaded_stack import End, loaded_stack
from tests.timing.places import PLACES, observed_stack
from tests.timing.waiting_scenarios import REASONS

LOAD_LINES = 6_000  # of each model: what a scenario leaves of it fills every slot of the next one too
# What is in force where nothing is set; the tests' stack has shorter ones.
SETTINGS = {
    "BATCHWRIGHT_SLICE_SECONDS": "30",
    "BATCHWRIGHT_CANCEL_GRACE_SECONDS": "30",
    "BATCHWRIGHT_EXPIRY_GRACE_SECONDS": "5",
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",
}
CANCEL_GRACE = 30.0
MOST_DISPATCH, MOST_EXPIRED, MOST_CANCELLED = 1.0, 10.0, CANCEL_GRACE + 10.0
LONGEST_REPORT = 10.0
_TENTHS = "{:.1f}"
_LATE = "late steps"
_ENDS = [*(f"window {name}" for name in WINDOWS), *(f"cancel {name}" for name in CANCELS)]


class Report:
    """Tables of the measured times. `broken` has a sentence for each promise that was not kept."""

    def __init__(self, say: Console) -> None:
        self._say = say
        self.windows = _table(
            "the window closes", "last request after", "`expired` after", "files took", _LATE
        )
        self.cancels = _table("a cancel", "last request after", "`cancelled` after", "files took", _LATE)
        self.reasons = _columns("a batch waits, and says why; seconds", *PLACES)
        self.broken: list[str] = []

    def window(self, name: str, end: End, due: float) -> None:
        """Check the times of a batch whose completion window closed, and add them as a row.

        Args:
            due: Unix time from which the delay of the end is measured. It is later than `expires_at` if no
                worker ran then.
        """
        batch = end.batch
        assert batch.expires_at is not None
        assert batch.status == "expired", f"{name}: it ended as {batch.status}"
        assert batch.expired_at is not None
        late = end.seen_at - due - end.finalizing
        self._judge(name, "expired", late, MOST_EXPIRED)
        self._judge(name, "the last request", _after(end, batch.expires_at), MOST_DISPATCH)
        if batch.expired_at < batch.expires_at:
            self.broken.append(f"{name}: it expired {batch.expires_at - batch.expired_at} s too early")
        self._add(self.windows, name, end, due, batch.expires_at)

    def cancel(self, name: str, end: End, due: float) -> None:
        assert end.batch.status == "cancelled", f"{name}: it ended as {end.batch.status}"
        self._judge(name, "cancelled", end.seen_at - due, MOST_CANCELLED)
        self._add(self.cancels, name, end, due, due)

    def reason(self, name: str, since: float, shown_at: Mapping[str, float]) -> None:
        for place, at in shown_at.items():
            self._judge(name, f"the reason in {place}", at - since, LONGEST_REPORT)
        shown = (
            _TENTHS.format(shown_at[place] - since) if place in shown_at else "nobody can" for place in PLACES
        )
        row = (_words(name), *shown)
        self.reasons.add_row(*row)
        self._say.print("  ".join(row), markup=False)

    def _add(self, table: Table, name: str, end: End, due: float, stop: float) -> None:
        row = (_words(name), str(end.settled), *_shown(end, due, stop))
        table.add_row(*row)
        self._say.print("  ".join(row), markup=False)

    def _judge(self, name: str, what: str, seconds: float | None, most: float) -> None:
        if seconds is not None and seconds > most:
            self.broken.append(f"{_words(name)}: {what} {seconds:.1f} s late; {most:.0f} s are promised")


async def measure(report: Report, window: int, only: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="batchwright-timing-", ignore_cleanup_errors=True) as folder:
        async with loaded_stack(Path(folder), LOAD_LINES, **SETTINGS) as there:
            for name, closes in WINDOWS.items():
                if _is_wanted(f"window {name}", only):
                    await there.ready()
                    report.window(name, *await closes(there, window))
            for name, cancel in CANCELS.items():
                if _is_wanted(f"cancel {name}", only):
                    await there.ready()
                    report.cancel(name, *await cancel(there))


async def explain(report: Report, only: list[str]) -> None:
    wanted = {name: brings for name, brings in REASONS.items() if _is_wanted(f"reason {name}", only)}
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="batchwright-timing-", ignore_cleanup_errors=True) as folder:
        async with observed_stack(Path(folder), **SETTINGS) as there:
            for name, brings in wanted.items():
                await there.ready()
                async with brings(there) as wait:
                    shown_at = await there.first_shown(wait.batch, wait.reasons, ui=wait.ui)
                report.reason(name, wait.since, shown_at)


def _is_wanted(name: str, only: list[str]) -> bool:
    return not only or any(part in _words(name) for part in only)


def _table(title: str, *columns: str) -> Table:
    return _columns(f"{title}; seconds", "lines settled", *columns)


def _columns(title: str, *columns: str) -> Table:
    found = Table(title=title)
    found.add_column("")
    for column in columns:
        found.add_column(column, justify="right")
    return found


def _shown(end: End, due: float, stop: float) -> tuple[str, str, str, str]:
    last = _after(end, stop)
    return (
        "none was sent" if last is None else _TENTHS.format(last),
        _TENTHS.format(end.seen_at - due),
        _TENTHS.format(end.finalizing),
        str(end.late_steps),
    )


def _after(end: End, moment: float) -> float | None:
    return None if end.last_request_at is None else end.last_request_at - moment


def _words(name: str) -> str:
    return name.replace("_", " ")


async def _all(report: Report, window: int, only: list[str]) -> None:
    if not only or any(_is_wanted(name, only) for name in _ENDS):
        await measure(report, window, only)
    await explain(report, only)


def run(
    window: Annotated[int, typer.Option(min=5, help="Seconds of the windows that close.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help="Part of a scenario's name; repeatable.")] = None,
) -> None:
    """End batches at each point of their life, under full load, and let batches wait for each possible
    reason.

    The settings that matter for the times have their default values.
    """
    report, console = Report(Console(stderr=True)), Console(width=140)
    with ExitStack() as at_the_end:
        open_run_folder(at_the_end.callback)
        asyncio.run(_all(report, window, only or []))
    console.print(report.windows)
    console.print(report.cancels)
    console.print(report.reasons)
    for sentence in report.broken:
        console.print(f"BROKEN: {sentence}", markup=False)
    raise typer.Exit(1 if report.broken else 0)


if __name__ == "__main__":
    typer.run(run)
