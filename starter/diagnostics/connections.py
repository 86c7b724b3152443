"""Connects commands to PostgreSQL, Temporal and object storage.

If a dependency is unavailable, the command ends with a one-sentence error.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from batchwright.database.database import Database
from batchwright.database.errors import DatabaseError, DatabaseUnavailable
from batchwright.database.postgres import open_database
from batchwright.settings import Settings, SettingsError
from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import ExitCode, stop
from batchwright.starter.recorded_command import REFUSALS, CommandRefused

_Result = TypeVar("_Result")
_DEV_ENV = Path(".batchwright") / "dev.env"
_DIRECT = "This command uses the database directly, at the address in BATCHWRIGHT_DATABASE_URL."


def run_or_stop(
    work: Awaitable[_Result], *failures: type[Exception], code: ExitCode = ExitCode.USAGE
) -> _Result:
    """Wait for `work` and return its result.

    In these cases, end the command with a short error:

    - A setting is wrong. The exit code is USAGE.
    - A change is rejected. The exit code is FAILED.
    - `work` raises DatabaseError or an exception in `failures`. The exit code is `code`. If the database is
      unavailable, the error also says that the command uses the database directly.

    Args:
        failures: exceptions that are raised if another dependency, such as Temporal, is unavailable.
    """

    async def run() -> _Result:
        return await work

    try:
        return asyncio.run(run())
    except SettingsError as error:
        stop(str(error))
    except (CommandRefused, *REFUSALS) as error:
        stop(str(error), ExitCode.FAILED)
    except (DatabaseError, *failures) as error:
        sentences = [f"{str(error).rstrip('.')}."]
        if isinstance(error, DatabaseUnavailable):
            sentences += [_DIRECT, dev_stack_hint()]
        elif _DEV_ENV.exists():
            sentences.append(dev_stack_hint())
        stop(" ".join(filter(None, sentences)), code)


def dev_stack_hint() -> str:
    """Return a hint for an error message. The hint tells the user to load the file `dev.env`.

    `batchwright dev` writes the addresses of its stack to this file. If `BATCHWRIGHT_DATABASE_URL` is set, no
    such stack is meant or the file is already loaded, so return an empty text.
    """
    if "BATCHWRIGHT_DATABASE_URL" in os.environ:
        return ""
    if _DEV_ENV.exists():
        return f"`. {_DEV_ENV}` sets the addresses of the `batchwright dev` stack here."
    return f"If you use `batchwright dev`, run `. {_DEV_ENV}` in its directory: it sets the addresses."


def query_or_stop(query: Callable[[Database], Awaitable[_Result]]) -> _Result:
    """Open the configured database, pass it to `query`, and return the result of `query`.

    If a setting is wrong, a change is rejected, or the database is unavailable or rejects the query, end the
    command with a one-sentence error.
    """
    return run_or_stop(with_database(settings_or_stop(), query))


async def with_database(settings: Settings, query: Callable[[Database], Awaitable[_Result]]) -> _Result:
    """Open the database of these settings, pass it to `query`, close it, and return the result of `query`.

    Raises:
        DatabaseError: the database is unavailable or rejects the query.
    """
    database = await open_database(settings, patience_seconds=0)
    try:
        return await query(database)
    finally:
        await database.close()
