"""Runs `batchwright` commands as processes, and captures their output."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.forked_process import ForkedProcess


class Ended(NamedTuple):
    code: int
    stdout: list[str]  # lines of stdout
    stderr: str


async def batchwright(*arguments: str, **settings: str) -> Ended:
    """Run a command until it ends. Its output is as on a terminal of 80 columns without colours."""
    return await asyncio.to_thread(_run, arguments, settings)


def start(*arguments: str, terminal: bool = False, **settings: str) -> ForkedProcess:
    """Start a command. With `terminal`, its output is as on a terminal of 80 columns without colours."""
    environment = {
        **os.environ,
        "COLUMNS": "80",
        **({"TTY_COMPATIBLE": "1", "TERM": "dumb"} if terminal else {}),
        **{f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()},
    }
    return ForkedProcess(("batchwright.starter", *arguments), _modules(), environment)


def _run(arguments: Sequence[str], settings: Mapping[str, str]) -> Ended:
    with start(*arguments, terminal=True, **settings) as process:
        output, errors = process.communicate()
        return Ended(process.wait(), output.splitlines(), errors)


@cache
def _modules() -> tuple[str, ...]:
    """Return the names of the modules of all commands."""
    commands = "batchwright.starter.commands"
    folder = Path(import_module(commands).__path__[0])
    return tuple(f"{commands}.{file.parent.name}.{file.stem}" for file in folder.glob("[a-z]*/[a-z]*.py"))
