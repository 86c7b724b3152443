"""What commands ask of PostgreSQL, Temporal and the storage themselves, and say where there is no answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from batchwright.database.errors import DatabaseError, UnknownTenant
from batchwright.database.pool import Database, open_database
from batchwright.settings import Settings, SettingsError
from starter.options import settings_or_stop
from starter.output import Exit, stop

_Answer = TypeVar("_Answer")


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
    except UnknownTenant as error:  # it did answer
        stop(str(error), Exit.FAILED)
    except (DatabaseError, *silences) as error:
        stop(str(error), code)


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
