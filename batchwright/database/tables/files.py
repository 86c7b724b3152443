"""Table of files."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batchwright.database.driver import Row, Session
from batchwright.database.errors import FileInUse
from batchwright.database.list_positions import FIRST_POSITION, LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import FileRow, parse_row
from batchwright.database.sql import queries

_PARSE_INLINE_LIMIT = 500  # number of rows that take about 5 ms


class FilesTable(Protocol):
    """Table of the files of tenants.

    An expired file counts as missing, unless a batch or a schedule still needs the file as input. A batch
    needs its input file until the batch has ended and its output files are written.
    """

    async def insert(self, row: FileRow) -> FileRow:
        """Insert the row of a file, and return it. If the tenant already has a file with this id, change
        nothing and return the row of that file.
        """
        ...

    async def get(self, tenant: str, file_id: str) -> FileRow | None: ...

    async def get_all(self, tenant: str, ids: Sequence[str]) -> dict[str, FileRow]:
        """Return the files with these ids, by id. Files that do not exist are left out."""
        ...

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        """Return at most `limit` files of a tenant. The second item is True if more follow.

        Args:
            purpose: return only files with this purpose; None for all files.
            ascending: True for oldest first, False for newest first.
            after: id of the last file of the previous page; None for the first page.

        Raises UnknownCursor if the tenant has no file `after`.
        """
        ...

    async def delete(self, tenant: str, file_id: str) -> FileRow | None:
        """Delete the row of a file and return it. The caller must then delete the object in storage.

        Return None if the file does not exist, or if it has expired and no schedule needs it. Raises
        FileInUse if the file is the input of a batch that has not ended, or of an ended batch that may still
        get its output files.
        """
        ...

    async def is_input(self, tenant: str, file_id: str) -> bool:
        """Return True if the file is the input of any batch, even of an ended batch."""
        ...


@dataclass(frozen=True)
class FileQueries:
    insert: str
    get: str
    get_all: str
    position: str
    page_up: str
    page_down: str
    purpose_up: str
    purpose_down: str
    lock: str
    reader: str
    input: str
    delete: str


class PostgresFiles(FilesTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(FileQueries, "files")

    async def insert(self, row: FileRow) -> FileRow:
        async with self._connections.session() as session:
            return await self.insert_by(session, row)

    async def insert_by(self, session: Session, row: FileRow) -> FileRow:
        """Do the same as `insert`, in the transaction of `session`."""
        record = await session.fetchrow(
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
        assert record is not None
        return _parse_file(record)

    async def get(self, tenant: str, file_id: str) -> FileRow | None:
        if not file_id.isprintable():  # PostgreSQL stores no NUL, so no row can match
            return None
        return _file_row(await self._connections.fetchrow(self._sql.get, tenant, file_id))

    async def get_all(self, tenant: str, ids: Sequence[str]) -> dict[str, FileRow]:
        records = await self._connections.fetch(self._sql.get_all, tenant, list(ids))
        return {row.id: row for row in await _file_rows(records)}

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        if purpose is not None and not purpose.isprintable():
            return [], False
        if purpose is None:
            sql, of = self._sql.page_up if ascending else self._sql.page_down, ()
        else:
            sql, of = self._sql.purpose_up if ascending else self._sql.purpose_down, (purpose,)
        async with self._connections.session() as session:
            position = FIRST_POSITION if ascending else LAST_POSITION
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            records = await session.fetch(sql, tenant, *position, limit + 1, *of)
        return await _file_rows(records[:limit]), len(records) > limit

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

    async def is_input(self, tenant: str, file_id: str) -> bool:
        async with self._connections.session() as session:
            return await session.fetchrow(self._sql.input, tenant, file_id) is not None


async def _file_rows(records: Sequence[Row]) -> list[FileRow]:
    """Return the files in the database records.

    If there are many records, they are parsed in a thread, so that the event loop stays free.
    """
    if len(records) <= _PARSE_INLINE_LIMIT:
        return list(map(_parse_file, records))
    return await asyncio.to_thread(lambda: list(map(_parse_file, records)))


def _file_row(record: Row | None) -> FileRow | None:
    return None if record is None else _parse_file(record)


def _parse_file(record: Row) -> FileRow:
    return parse_row(FileRow, record)
