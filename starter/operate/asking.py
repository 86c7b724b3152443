"""What commands ask of PostgreSQL, Temporal and the storage themselves, and say where there is no answer."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from batchwright.database.errors import DatabaseError, UnknownTenant, UnknownUser
from batchwright.database.pool import Database, open_database
from batchwright.settings import Settings, SettingsError
from starter.options import settings_or_stop
from starter.output import Exit, stop

_Answer = TypeVar("_Answer")
_DEV_ENV = Path(".batchwright") / "dev.env"


def answered(asking: Awaitable[_Answer], *silences: type[Exception], code: Exit = Exit.USAGE) -> _Answer:
    """Ends the command with one sentence and `code` where a part does not answer, or refuses.

    `silences` are what `asking` raises then, beside DatabaseError.
    """

    async def waited() -> _Answer:
        return await asking

    try:
        return asyncio.run(waited())
    except SettingsError as error:
        stop(str(error))
    except (UnknownTenant, UnknownUser) as error:  # it did answer
        stop(str(error), Exit.FAILED)
    except (DatabaseError, *silences) as error:
        stop(f"{str(error).rstrip('.')}{_stack_here() or '.'}", code)


def _stack_here() -> str:
    """Where to look, for whoever runs `dev` here and has not told this shell of it."""
    told = _DEV_ENV.exists() and "BATCHWRIGHT_DATABASE_URL" not in os.environ
    return f"; `. {_DEV_ENV}` names what `batchwright dev` runs here." if told else ""


def asked(question: Callable[[Database], Awaitable[_Answer]]) -> _Answer:
    """Of the database that the settings name; ends the command as `answered` does."""
    return answered(with_database(settings_or_stop(), question))


async def with_database(settings: Settings, question: Callable[[Database], Awaitable[_Answer]]) -> _Answer:
    """Raises DatabaseError."""
    database = await open_database(settings, patience_seconds=0)
    try:
        return await question(database)
    finally:
        await database.close()
