"""`batchwright watch`: a batch's progress until its end."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from starter.client import Client, ClientError
from starter.options import BatchId, Interval, Json, Tenant, Url, connected
from starter.output import (
    Exit,
    coloured,
    counts,
    describe,
    exit_code,
    print_json,
    reason,
    stderr,
    stdout,
    stop,
)
from starter.tables import plain
from starter.views import Batch, ModelPart

_PATIENCE_SECONDS = 60.0
_NAME_WIDTH = 30


def watch(
    batch_id: BatchId,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Show a batch's progress until it has ended."""
    with connected(url, tenant) as client:
        batch = follow(client, client.batch(batch_id), interval=interval, silent=json)
    if json:
        print_json(batch)
    else:
        stdout().print(describe(batch))
    raise typer.Exit(int(exit_code(batch.status)))


def follow(client: Client, batch: Batch, *, interval: float, silent: bool = False) -> Batch:
    """The batch as it ended. The API may be away for up to a minute meanwhile.

    Ctrl-C ends the command, not the batch.

    Raises:
        ClientError: it stayed away, or refuses.
    """
    try:
        with _shown(silent) as show:
            while not batch.status.is_terminal:
                show(batch)
                time.sleep(interval)
                batch = _look(client, batch.id, interval)
    except KeyboardInterrupt:
        told = f"{batch.id} goes on: `batchwright watch {batch.id}` follows it again."
        stop(told, Exit.UNFINISHED)
    return batch


@contextmanager
def _shown(silent: bool) -> Generator[Callable[[Batch], None]]:
    """Bars on a terminal; elsewhere, as in the log of a script, a line for each change."""
    console = stderr()
    if silent:
        yield lambda batch: None
    elif console.is_terminal:
        board = Board()
        with Live(board.bars, console=console, refresh_per_second=4, transient=True):
            yield board.show
    else:
        yield Teller(console).show


def _look(client: Client, batch_id: str, interval: float) -> Batch:
    patience_ends = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return client.batch(batch_id)
        except ClientError as error:
            if not error.passing or time.monotonic() >= patience_ends:
                raise
        time.sleep(interval)


class Teller:
    """A line where the batch's status, or what it waits for, is another than before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ""

    def show(self, batch: Batch) -> None:
        why = "".join(f"; {reason(each)}" for each in batch.waiting)
        state = f"{batch.status.value}{', paused' if batch.is_paused else ''}{why}"
        if state != self._told:
            self._told = state
            self._console.print(f"{counts(batch.request_counts)}, {state}", markup=False)


class Board:
    """A bar for each model, or one for the batch while its models are not known."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._batch = self.bars.add_task("", total=None, note="")
        self._models: dict[str, TaskID] = {}

    def show(self, batch: Batch) -> None:
        settled = batch.request_counts
        reasons = {why.model: reason(why, of_model=False) for why in batch.waiting}
        self.bars.update(
            self._batch,
            description=coloured(batch),
            total=settled.total or None,
            completed=settled.settled,
            note=plain(reasons.pop(None, "")) or _failed(settled.failed),
        )
        for part in batch.parts:
            self._show_model(part, reasons.get(part.model, ""))

    def _show_model(self, part: ModelPart, why: str) -> None:
        if part.model not in self._models:
            name = plain(part.model[:_NAME_WIDTH])
            self._models[part.model] = self.bars.add_task(name, total=part.lines, note="")
        self.bars.update(
            self._models[part.model],
            completed=part.completed + part.failed,
            note=plain(why) or _failed(part.failed),
        )


def _failed(count: int) -> str:
    return f"[red]{count:,} failed[/red]" if count else ""
