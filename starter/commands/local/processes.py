"""`batchwright worker`, `api`, `simulator` and `migrate`: each runs one component in this process."""

import asyncio
import json as jsonlib
import runpy
import sys
from typing import Annotated

import typer

from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import ExitCode, stop


def worker(context: typer.Context) -> None:
    """Run a worker: workflows and activities."""
    _run_as_main("worker", context.args)


def api(context: typer.Context) -> None:
    """Serve the HTTP API."""
    _run_as_main("api", context.args)


def simulator(context: typer.Context) -> None:
    """Serve a simulated backend."""
    _run_as_main("simulator", context.args)


def migrate(
    json: Annotated[bool, typer.Option("--json", help="Print what was applied as JSON.")] = False,
) -> None:
    """Apply database migrations."""
    # Imported here because the other commands must not wait for the database driver.
    from batchwright.database.errors import DatabaseError
    from batchwright.database.migrate import migrate as apply_migrations

    settings = settings_or_stop()
    try:
        applied = asyncio.run(apply_migrations(settings.database_url))
    except DatabaseError as error:
        stop(str(error), ExitCode.FAILED)
    if json:
        print(jsonlib.dumps({"applied": applied}))
    else:
        print("\n".join(f"applied {name}" for name in applied) or "nothing to apply")


def _run_as_main(package: str, arguments: list[str]) -> None:
    """Run `package` in this process, as `python -m` does, with these command-line arguments."""
    sys.argv = [f"batchwright {package}", *arguments]
    runpy.run_module(f"batchwright.{package}", run_name="__main__")
