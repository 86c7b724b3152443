"""The table of files."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from batchwright.database.base import FilesTable
from batchwright.database.connection import Connections
from batchwright.database.driver import Row, Session
from batchwright.database.errors import FileInUse, UnknownCursor
from batchwright.database.rows import FileRow
from batchwright.database.sql import queries

FIRST = (datetime.min.replace(tzinfo=UTC), "")
LAST = (datetime.max.replace(tzinfo=UTC), "")
_AT_ONCE = 500  # rows: about 5 ms


@dataclass(frozen=True)
class FileQueries:
    insert: str
    get: str
    position: str
    page_up: str
    page_down: str
    purpose_up: str
    purpose_down: str
    lock: str
    reader: str
    delete: str


class Files(FilesTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(FileQueries, "files")

    async def insert(self, row: FileRow) -> None:
        async with self._connections.session() as session:
            await self.insert_by(session, row)

    async def insert_by(self, session: Session, row: FileRow) -> None:
        """The same within the caller's transaction."""
        await session.execute(
            self._sql.insert,
            row.tenant,
            row.id,
            row.purpose,
            row.filename,
            row.bytes,
            row.created_at,
            row.expires_at,
            row.storage_key,
        )

    async def get(self, tenant: str, file_id: str) -> FileRow | None:
        if not file_id.isprintable():  # PostgreSQL takes no NUL, so there is none to find
            return None
        return _file_row(await self._connections.fetchrow(self._sql.get, tenant, file_id))

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        if purpose is not None and not purpose.isprintable():
            return [], False
        sql, of = self._page(purpose, ascending), () if purpose is None else (purpose,)
        async with self._connections.session() as session:
            position = FIRST if ascending else LAST
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            records = await session.fetch(sql, tenant, *position, limit + 1, *of)
        return await _file_rows(records[:limit]), len(records) > limit

    def _page(self, purpose: str | None, ascending: bool) -> str:
        if purpose is None:
            return self._sql.page_up if ascending else self._sql.page_down
        return self._sql.purpose_up if ascending else self._sql.purpose_down

    async def delete(self, tenant: str, file_id: str) -> FileRow | None:
        if not file_id.isprintable():
            return None
        async with self._connections.transaction() as session:
            if await session.fetchrow(self._sql.lock, tenant, file_id) is None:
                return None
            reader = await session.fetchrow(self._sql.reader, tenant, file_id)
            if reader is not None:
                raise FileInUse(file_id, reader["id"])
            return _file_row(await session.fetchrow(self._sql.delete, tenant, file_id))


async def _file_rows(records: Sequence[Row]) -> list[FileRow]:
    """Many of them in a thread: the event loop is everybody's."""
    if len(records) <= _AT_ONCE:
        return list(map(_known_row, records))
    return await asyncio.to_thread(lambda: list(map(_known_row, records)))


async def position_of(session: Session, sql: str, tenant: str, after: str) -> tuple[datetime, str]:
    """Where the row `after` stands in the order of creation. Raises UnknownCursor."""
    row = await session.fetchrow(sql, tenant, after) if after.isprintable() else None
    if row is None:
        raise UnknownCursor(after)
    return row["created_at"], after


def _file_row(record: Row | None) -> FileRow | None:
    return None if record is None else _known_row(record)


def _known_row(record: Row) -> FileRow:
    return FileRow.model_validate(dict(record.items()))
