"""What the commands print, and the codes they exit with."""

import os
import shlex
import shutil
import sys
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from batchwright.contracts.openai import BatchStatus
from starter.tables import columns, facts, plain
from starter.views import Batch, Counts, Problem, Waiting

_COLOURS = {
    BatchStatus.COMPLETED: "green",
    BatchStatus.FAILED: "red",
    BatchStatus.EXPIRED: "red",
    BatchStatus.CANCELLED: "yellow",
    BatchStatus.CANCELLING: "yellow",
}
_SHOWN_ERRORS = 10
_UNFOLDED = 10_000


class Exit(IntEnum):
    COMPLETED = 0
    FAILED = 1  # also expired and cancelled
    UNFINISHED = 2
    USAGE = 3  # also: the API cannot be reached, or refuses


def stdout() -> Console:
    """Made where it is used: tests and pipes change what sys.stdout is."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNFOLDED  # for grep and its like a row stays one line
    return console


def stderr() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def program() -> str:
    """How whoever runs this calls `batchwright` again: by its path, where the name alone is not found."""
    called = Path(sys.argv[0])
    by_path = called.name == "batchwright" and shutil.which("batchwright") is None
    return shlex.quote(str(called)) if by_path else "batchwright"


def stop(message: str, code: Exit = Exit.USAGE) -> NoReturn:
    """Ends the command with one sentence on stderr."""
    stderr().print(message, markup=False)
    raise typer.Exit(int(code))


def print_json(value: BaseModel) -> None:
    """As the API answered it, on one line."""
    print(value.model_dump_json(exclude_unset=True))


def exit_code(status: BatchStatus) -> Exit:
    if status is BatchStatus.COMPLETED:
        return Exit.COMPLETED
    return Exit.FAILED if status.is_terminal else Exit.UNFINISHED


def moment(seconds: int | None) -> str:
    """Local time."""
    return "" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def coloured(batch: Batch) -> str:
    name = f"{batch.status.value}, paused" if batch.is_paused else batch.status.value
    colour = _COLOURS.get(batch.status, "cyan")
    return f"[{colour}]{name}[/{colour}]"


def counts(of: Counts) -> str:
    failed = f", {of.failed:,} failed" if of.failed else ""
    return f"{of.settled:,} of {of.total:,} lines{failed}"


def describe(batch: Batch) -> Table:
    """A batch in full, within 80 columns."""
    table = facts()
    for name, value in _facts(batch):
        if value:
            table.add_row(name, value)
    for part in batch.parts:
        settled = counts(Counts(total=part.lines, completed=part.completed, failed=part.failed))
        table.add_row("model", f"{plain(part.model)}: {settled}")
    for why in batch.waiting:
        table.add_row("waiting", plain(reason(why)))
    for problem in (batch.errors.data if batch.errors else [])[:_SHOWN_ERRORS]:
        table.add_row("error", describe_problem(problem))
    if batch.errors and len(batch.errors.data) > _SHOWN_ERRORS:
        table.add_row("", f"and {len(batch.errors.data) - _SHOWN_ERRORS:,} more errors; --json lists them")
    return table


def _facts(batch: Batch) -> list[tuple[str, str]]:
    tokens = batch.usage
    used = f"{tokens.input_tokens:,} in, {tokens.output_tokens:,} out" if tokens else ""
    metadata = ", ".join(f"{key}={value}" for key, value in (batch.metadata or {}).items())
    return [
        ("batch", batch.id),
        ("status", coloured(batch)),
        ("settled", counts(batch.request_counts) if batch.request_counts.total else ""),
        ("endpoint", batch.endpoint),
        ("window", batch.completion_window),
        ("made of", _origin(batch)),
        ("created", moment(batch.created_at)),
        ("ended", moment(batch.ended_at)) if batch.ended_at else ("expires", moment(batch.expires_at)),
        ("tokens", used if tokens and tokens.total_tokens else ""),
        ("metadata", plain(metadata)),
        ("input", batch.input_file_id),
        ("output", batch.output_file_id or ""),
        ("errors", batch.error_file_id or ""),
    ]


def _origin(batch: Batch) -> str:
    origin = batch.x_batchwright.origin if batch.x_batchwright else None
    return f"{origin.batch_id} ({origin.chance})" if origin else ""


def reason(why: Waiting, *, of_model: bool = True) -> str:
    """With the model's name, and since when."""
    model = f"{why.model}: " if why.model and of_model else ""
    return f"{model}{why.reason}" + (f" (since {moment(why.since)[11:]})" if why.since else "")


def describe_problem(problem: Problem) -> str:
    where = f"line {problem.line}: " if problem.line is not None else ""
    return plain(f"{where}{problem.message} ({problem.code})")


def listing(batches: list[Batch]) -> Table:
    table = columns("batch", "status", "created", "settled", right=1)
    for batch in batches:
        settled = f"{batch.request_counts.settled}/{batch.request_counts.total}"
        table.add_row(batch.id, coloured(batch), moment(batch.created_at)[5:16], settled)
    return table
