"""What `dev` and `demo` show of a stack."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from starter.output import program
from starter.stack.errors import StackError
from starter.stack.state import StackInfo
from starter.tables import facts

# What makes one, with those settings, and where the command line looks for it.
_FIRST_KEY = (
    "{program} tenants create default",
    "export BATCHWRIGHT_API_KEY=$({program} keys create default)",
)


def panel(info: StackInfo, asked: Path | str = "") -> Panel:
    """The addresses, within 80 columns; `asked` are the backends, where there is no simulator."""
    table = facts()
    for name, value in _addresses(info, asked):
        table.add_row(name, Text(value))
    return Panel(table, title="Batchwright", subtitle="Ctrl-C stops it", title_align="left", expand=False)


def use(console: Console, info: StackInfo, *, with_keys: bool = False) -> None:
    """The commands for another terminal, unbroken however narrow this one is: they are there to be copied."""
    console.print("In another terminal:")
    first_key = _FIRST_KEY if with_keys else ()
    commands = (*first_key, "{program} submit FILE --wait", "{program} doctor")
    exports = f". {shlex.quote(f'{info.data}/dev.env')}"
    for line in (exports, *(command.format(program=program()) for command in commands)):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _addresses(info: StackInfo, asked: Path | str) -> list[tuple[str, str]]:
    inference = f"simulator at {info.simulator}" if info.simulator else str(asked)
    return [
        ("API", f"{info.api}/v1 (described at /docs)"),
        ("Temporal UI", info.ui),
        ("Temporal", f"{info.temporal}, namespace {info.namespace}"),
        ("PostgreSQL", info.postgres),
        ("Inference", inference),
        ("Data", str(info.data)),
        ("Logs", f"{info.data}/logs"),
    ]


def complain(errors: Console, error: StackError) -> None:
    """The sentence, and what the part itself said last."""
    errors.print(Text(str(error)), style="red")
    if error.detail:
        errors.print(Text(error.detail), style="dim")
