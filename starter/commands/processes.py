"""`batchwright worker`, `api`, `simulator`, `migrate`: the parts of the house as processes."""

import asyncio
import json as jsonlib
import runpy
import sys
from typing import Annotated

import typer

from starter.options import settings_or_stop
from starter.output import Exit, stop


def worker(context: typer.Context) -> None:
    """Run a worker: workflows and activities."""
    _become("worker", context.args)


def api(context: typer.Context) -> None:
    """Serve the HTTP API."""
    _become("api", context.args)


def simulator(context: typer.Context) -> None:
    """Serve a simulated backend."""
    _become("simulator", context.args)


def migrate(
    json: Annotated[bool, typer.Option("--json", help="Print what was applied as JSON.")] = False,
) -> None:
    """Bring the database's tables up to date."""
    # Imported when it is used: every other command would wait for the database's driver.
    from batchwright.database.errors import DatabaseError
    from batchwright.database.migrate import migrate as apply_migrations

    settings = settings_or_stop()
    try:
        applied = asyncio.run(apply_migrations(settings.database_url))
    except DatabaseError as error:
        stop(str(error), Exit.FAILED)
    if json:
        print(jsonlib.dumps({"applied": applied}))
    else:
        print("\n".join(f"applied {name}" for name in applied) or "nothing to apply")


def _become(package: str, arguments: list[str]) -> None:
    """Runs the package's main in this process: entry points do not import each other."""
    sys.argv = [f"batchwright {package}", *arguments]
    runpy.run_module(package, run_name="__main__")
