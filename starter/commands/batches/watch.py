"""`batchwright watch`: shows the progress of a batch until it has ended."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.batch_groups import batches_exit_code, batches_of, print_batches
from batchwright.starter.batch_output import (
    cost_text,
    count_text,
    done_in_text,
    failure_text,
    forecast_text,
    start_forecast_text,
    status_markup,
    waiting_text,
)
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.options import BatchOrGroup, Interval, Json, Tenant, Url, api_client
from batchwright.starter.output import ExitCode, escaped, property_table, stderr, stop

_OUTAGE_SECONDS = 60.0
_NAME_WIDTH = 30


def watch(
    batch_id: BatchOrGroup,
    interval: Interval = 1.0,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Show the progress of a batch until it has ended."""
    with api_client(url, tenant) as client:
        batches = follow_all(client, batches_of(client, batch_id), interval=interval, silent=json)
    print_batches(batch_id, batches, json)
    raise typer.Exit(int(batches_exit_code(batches)))


def follow_all(
    client: Client, batches: Sequence[BatchObject], *, interval: float, silent: bool
) -> list[BatchObject]:
    """Show the progress of batches, one after another, until all have ended. Return the ended batches.

    Args:
        interval: seconds between two polls.
        silent: True to show nothing.

    Raises:
        ClientError: the API was unavailable for more than a minute, or rejected a call.
    """
    ended = list[BatchObject]()
    for number, batch in enumerate(batches, 1):
        if len(batches) > 1 and not silent:
            stderr().print(f"Part {number} of {len(batches)}: {batch.id}", style="dim", markup=False)
        ended.append(follow(client, batch, interval=interval, silent=silent))
    return ended


def follow(client: Client, batch: BatchObject, *, interval: float, silent: bool = False) -> BatchObject:
    """Show the progress of a batch until it has ended, and return the ended batch.

    If the API sends no events, the batch is polled. A failed poll is repeated for up to a minute. Ctrl-C ends
    only this command; the batch continues.

    Args:
        interval: seconds between two polls.
        silent: True to show nothing.

    Raises:
        ClientError: the API was unavailable for more than a minute, or rejected a call.
    """
    try:
        with _progress_display(silent) as show, closing(_states(client, batch.id, interval)) as states:
            while not batch.status.is_terminal:
                show(batch)
                batch = next(states)
    except KeyboardInterrupt:
        hint = f"{batch.id} continues; `batchwright watch {batch.id}` shows its progress again."
        stop(hint, ExitCode.UNFINISHED)
    return batch


@contextmanager
def _progress_display(silent: bool) -> Generator[Callable[[BatchObject], None]]:
    """Context manager that yields a function. The function shows the progress of a batch:

    - If `silent` is True, the function shows nothing.
    - If the output is a terminal, the function shows progress bars.
    - Otherwise, the function prints a line of text for each change.
    """
    console = stderr()
    if silent:
        yield lambda batch: None
    elif console.is_terminal:
        board = LiveProgress()
        with Live(board, console=console, refresh_per_second=4, transient=True):
            yield board.show
    else:
        yield TextProgress(console).show


def _states(client: Client, batch_id: str, interval: float) -> Generator[BatchObject]:
    """Yield the state of a batch after each event from the API's event stream and after each poll.

    If the stream ends or cannot be opened, the next step depends on what the stream returned:

    - The stream had events, or the API refused the stream with status 503: the batch is polled once, after
      `interval` seconds. Then the stream is opened again.
    - Otherwise, for example with an old API or a proxy that holds back events: the stream is never opened
      again. The batch is polled every `interval` seconds.

    The iterator never ends by itself, even after the end of the batch.
    """
    has_events = True
    while True:
        if has_events:
            has_events = False
            try:
                for batch in client.events(batch_id):
                    has_events = True
                    yield batch
            except ClientError as error:
                has_events = has_events or error.status == HTTPStatus.SERVICE_UNAVAILABLE
        time.sleep(interval)
        yield _poll(client, batch_id, interval)


def _poll(client: Client, batch_id: str, interval: float) -> BatchObject:
    deadline = time.monotonic() + _OUTAGE_SECONDS
    while True:
        try:
            return client.batch(batch_id)
        except ClientError as error:
            if not error.is_transient or time.monotonic() >= deadline:
                raise
        time.sleep(interval)


class TextProgress:
    """A display that prints the progress of a batch as lines of text.

    A line is printed in these cases:

    - The forecast that was made before the first line was sent becomes available.
    - The status or a reason why the batch waits has changed.
    - The forecast for the completion window has changed, for example from `fits` to `late`.
    - Another 10 % of the batch's lines have completed or failed.
    - An error code of a model occurs for the first time.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_change = ""
        self._shown_start = False
        self._shown_errors = set[tuple[str, str | None]]()

    def show(self, batch: BatchObject) -> None:
        if batch.start_forecast is not None and not self._shown_start:
            self._shown_start = True
            self._console.print(
                f"forecast at the start: {start_forecast_text(batch.start_forecast)}", markup=False
            )
        why = "".join(f"; {waiting_text(each)}" for each in batch.waiting)
        forecast = batch.forecast
        state = f"{batch.status.value}{', paused' if batch.x_batchwright.paused else ''}{why}"
        counts = batch.request_counts
        tenths = counts.settled * 10 // counts.total if counts.total else 0
        change = f"{state} {'' if forecast is None else forecast.window} {tenths}"
        if change != self._last_change:
            self._last_change = change
            expected = "" if forecast is None else f"; {forecast_text(forecast)}"
            cost = f"; {text}" if (text := cost_text(batch)) else ""
            settled = f"{count_text(counts)}, " if counts.total else ""  # the input is not read yet
            self._console.print(f"{settled}{state}{expected}{cost}", markup=False)
        for failed in batch.x_batchwright.errors_summary:
            if (failed.code, failed.model) not in self._shown_errors:
                self._shown_errors.add((failed.code, failed.model))
                self._console.print(f"failed: {failure_text(failed)}", markup=False)


class LiveProgress:
    """A display of progress bars on a terminal: one for the batch, and one for each of its models.

    The reasons why models wait are shown below the bars.
    """

    def __init__(self) -> None:
        # If the terminal is narrow, only the notes are wrapped, so that bars and counts stay visible.
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=Column(overflow="fold")),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
        )
        self._waiting = property_table()
        self._batch = self.bars.add_task("", total=None, note="")
        self._models: dict[str, TaskID] = {}

    def __rich__(self) -> Group:
        return Group(self.bars, self._waiting)

    def show(self, batch: BatchObject) -> None:
        settled = batch.request_counts
        self._waiting = property_table()
        for reason in map(waiting_text, batch.waiting):
            self._waiting.add_row("waiting", escaped(reason))
        summary = batch.x_batchwright.errors_summary
        most_frequent = summary[0].code if summary else ""
        codes = {failed.model: failed.code for failed in reversed(summary)}  # the most frequent of each model
        expected = "" if batch.forecast is None else done_in_text(batch.forecast)
        notes = [_failed(settled.failed, most_frequent), expected, cost_text(batch)]
        self.bars.update(
            self._batch,
            description=status_markup(batch),
            total=settled.total or None,
            completed=settled.settled,
            note=", ".join(filter(None, notes)),
        )
        for part in batch.x_batchwright.models:
            if part.model not in self._models:
                name = escaped(part.model[:_NAME_WIDTH])
                self._models[part.model] = self.bars.add_task(name, total=part.lines, note="")
            self.bars.update(
                self._models[part.model],
                completed=part.completed + part.failed,
                note=_failed(part.failed, codes.get(part.model, "")),
            )


def _failed(count: int, code: str) -> str:
    """Return the number of failed lines and an error code as text; empty if no line has failed.

    Args:
        count: number of failed lines.
        code: the most frequent error code of these lines.
    """
    return f"[red]{count:,} failed{escaped(f': {code}' if code else '')}[/red]" if count else ""
