"""One question of a command to the database, and what the command says where that does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rich.table import Table

from batchwright.database.errors import DatabaseError
from batchwright.database.pool import Database, open_database
from starter.options import settings_or_stop
from starter.output import Exit, stop

_Answer = TypeVar("_Answer")


def asked(question: Callable[[Database], Awaitable[_Answer]]) -> _Answer:
    """Ends the command with a sentence where the database does not answer, or refuses."""

    async def ask() -> _Answer:
        database = await open_database(settings, patience_seconds=0)
        try:
            return await question(database)
        finally:
            await database.close()

    settings = settings_or_stop()
    try:
        return asyncio.run(ask())
    except DatabaseError as error:
        stop(str(error), Exit.FAILED)


def columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    return table
