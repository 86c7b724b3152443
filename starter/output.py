"""Output of the commands: consoles, exit codes, JSON, times and empty tables."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import IO, NoReturn, TextIO, cast

import typer
from pydantic import BaseModel
from pydantic_core import to_json
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from batchwright.contracts.terms import BatchStatus
from batchwright.rules.terminal_text import terminal_json, terminal_text

_UNLIMITED_WIDTH = 10_000
_PADDING = re.compile(r"(?<! ) +$", re.MULTILINE)


def column_table(*names: str, right: int = 0, whole: Collection[str] = ()) -> Table:
    """Return an empty table with the columns `names`. Long values are wrapped and never cut.

    Args:
        right: number of columns at the end that contain numbers and are aligned to the right.
        whole: names of columns that are never wrapped, for example because users copy their values.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        is_number = place >= len(names) - right
        table.add_column(
            name, justify="right" if is_number else "left", overflow="fold", no_wrap=name in whole
        )
    return table


def property_table() -> Table:
    """Return a table of names and values without a header."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def escaped(text: str) -> str:
    """Return `text` with brackets and backslashes escaped, so that rich does not treat them as formatting."""
    return escape(text)


def local_time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


class ExitCode(IntEnum):
    COMPLETED = 0
    FAILED = 1  # the batch failed, expired or was cancelled
    UNFINISHED = 2
    USAGE = 3  # wrong usage, or the API is unreachable or rejects the request


class _SafeConsole(Console):
    """A console that removes control characters, because texts can come from tenants and backends."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            # A replacement would be wider than the character, and not fit into the column of a table.
            yield Segment(text if control else terminal_text(text, ""), style, control)


class _Unpadded:
    """A text file that removes spaces at the ends of lines.

    The library Rich adds such spaces to the lines of tables.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def stdout() -> Console:
    """Return a new console that prints to the current `sys.stdout`. Tests replace `sys.stdout`."""
    console = _SafeConsole(file=sys.stdout, highlight=False)
    if console.is_terminal:
        return console
    # Each row stays on one line, for tools such as grep.
    unpadded = cast("IO[str]", _Unpadded(sys.stdout))
    return _SafeConsole(file=unpadded, highlight=False, width=_UNLIMITED_WIDTH)


def stderr() -> Console:
    return _SafeConsole(file=sys.stderr, highlight=False, soft_wrap=True)


def program_name() -> str:
    """Return the command that starts this program.

    If `batchwright` is not on PATH, the command is the path of the program. Otherwise, it is `batchwright`.
    """
    called = Path(sys.argv[0])
    by_path = called.name == "batchwright" and shutil.which("batchwright") is None
    return shlex.quote(str(called)) if by_path else "batchwright"


def stop(message: str, code: ExitCode = ExitCode.USAGE) -> NoReturn:
    """Print `message` to stderr, and exit with the code `code`."""
    stderr().print(message, markup=False)
    raise typer.Exit(int(code))


def discard_stdout() -> None:
    """Discard everything that is printed from now on.

    Call this if the reader of the output has closed the pipe, as `head` does.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes to it at exit, too


def print_json(value: BaseModel) -> None:
    """Print `value` as one line of JSON. Fields that were not given when the object was created are left out.

    Therefore, a response of the API is printed with exactly the fields that the API returned. If stdout is a
    terminal, control characters are printed as `\\u` escapes.
    """
    text = to_json(_given_fields(value), inf_nan_mode="null").decode()
    print(terminal_json(text) if sys.stdout.isatty() else text)


def _given_fields(value: object) -> object:
    """Convert a pydantic model to a dict. Fields that were not given when the model was created are left out.

    Fields that this version does not know are included. Nested models are converted, too. Other values are
    returned unchanged.
    """
    if isinstance(value, BaseModel):
        given = value.model_fields_set | (value.model_extra or {}).keys()
        return {name: _given_fields(item) for name, item in value if name in given}
    if isinstance(value, list):
        return [_given_fields(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _given_fields(item) for name, item in cast("dict[str, object]", value).items()}
    return value


def exit_code(status: BatchStatus) -> ExitCode:
    if status is BatchStatus.COMPLETED:
        return ExitCode.COMPLETED
    return ExitCode.FAILED if status.is_terminal else ExitCode.UNFINISHED


def local_timestamp(seconds: int | None) -> str:
    """Return Unix seconds as text with local date and time; empty if `seconds` is None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def short_timestamp(seconds: int | None) -> str:
    """Return Unix seconds as text with local date, hour and minute; empty if `seconds` is None.

    If the time is in the current year, the text contains no year.
    """
    if seconds is None:
        return ""
    at = datetime.fromtimestamp(seconds)
    return at.strftime("%m-%d %H:%M" if at.year == datetime.now().year else "%Y-%m-%d %H:%M")
