"""Terminal output of `dev` and `demo`, and the signals that stop these commands."""

import asyncio
import shlex
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from batchwright.settings import Settings
from batchwright.starter.embedded_stack.directory import StackInfo
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.output import program_name, property_table

# Commands that create the first key and store it where the command line reads it.
_FIRST_KEY_COMMANDS = (
    "{program} tenants create default",
    "export BATCHWRIGHT_API_KEY=$({program} keys create default)",
)


def address_panel(info: StackInfo, backends: Path | str = "") -> Panel:
    """Return a text panel with the addresses of the stack, at most 80 columns wide.

    Args:
        backends: registry file or URLs of the backends. Used only if the stack has no simulator.
    """
    table = property_table()
    inference = f"simulator at {info.simulator}" if info.simulator else str(backends)
    rows = {
        **({"Pages": info.pages} if info.pages else {}),
        "API": f"{info.api}/v1 (described at /docs)",
        "Temporal UI": info.ui,
        "Temporal": f"{info.temporal}, namespace {info.namespace}",
        "Inference": inference,
        "Data": info.data,
        "Logs": f"{info.data}/logs",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return Panel(table, title="Batchwright", subtitle="Ctrl-C stops it", title_align="left", expand=False)


def print_next_commands(console: Console, info: StackInfo, *, with_keys: bool = False) -> None:
    """Print the commands that the user can run in another terminal. Lines are not wrapped.

    Args:
        with_keys: True to include the commands that create the first API key.
    """
    console.print(Text(f"PostgreSQL: {info.postgres}"), soft_wrap=True)  # a panel would break the URL
    console.print("In another terminal:")
    first_key = _FIRST_KEY_COMMANDS if with_keys else ()
    commands = (*first_key, "{program} submit FILE --wait", "{program} doctor")
    exports = f". {shlex.quote(f'{info.data}/dev.env')}"
    for line in (exports, *(command.format(program=program_name()) for command in commands)):
        console.print(Text(f"  {line}"), soft_wrap=True)


def print_default_limit(console: Console, settings: Settings) -> None:
    """Print how many requests of a model a worker sends at once, unless the user has set this limit."""
    if settings.models or "model_in_flight" in settings.model_fields_set:
        return
    text = (
        f"A worker sends at most {settings.in_flight_of('')} requests of a model at once. "
        "Raise BATCHWRIGHT_MODEL_IN_FLIGHT to send more."
    )
    console.print(Text(text), soft_wrap=True)


def print_error(errors: Console, error: StackError) -> None:
    """Print the error, followed by the last output of the service that failed."""
    errors.print(Text(str(error)), style="red")
    if error.detail:
        errors.print(Text(error.detail), style="dim")


_Result = TypeVar("_Result")


# SIGHUP is sent when the terminal is closed.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(
    work: Coroutine[None, None, _Result], *, on_repeat: Callable[[], None], say: Callable[[str], None]
) -> _Result | None:
    """Run `work` until it ends or until a stop signal (SIGINT, SIGTERM or SIGHUP) cancels it.

    Return the result of `work`; None if it was cancelled.

    Args:
        on_repeat: function that is called for each further signal, while `work` is being cancelled.
        say: function that shows one sentence to the user. It is called at the first signal.
    """
    task = asyncio.ensure_future(work)

    def handle_signal() -> None:
        if task.cancelling():
            on_repeat()
        else:
            say("Stopping all services in order; press Ctrl-C again to stop them at once.")
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, handle_signal)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
