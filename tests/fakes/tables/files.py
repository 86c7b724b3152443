"""Fake table of files, in memory. It passes the tests of the PostgreSQL table."""

from collections.abc import Sequence
from datetime import UTC, datetime

from batchwright.database.errors import FileInUse
from batchwright.database.records import FileRow
from batchwright.database.tables.files import FilesTable
from batchwright.rules.calls.call_lines import CALLS_PURPOSE
from tests.fakes.tables.rows import Rows, position


class MemoryFiles(FilesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, row: FileRow) -> FileRow:
        return self._rows.enter().files.setdefault((row.tenant, row.id), row)

    async def get(self, tenant: str, file_id: str) -> FileRow | None:
        row = self._rows.enter().files.get((tenant, file_id))
        return row if row is not None and self._is_known(row) else None

    async def get_all(self, tenant: str, ids: Sequence[str]) -> dict[str, FileRow]:
        rows = [await self.get(tenant, id) for id in ids]
        return {row.id: row for row in rows if row is not None}

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        rows = [row for row in self._rows.enter().files.values() if row.tenant == tenant]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=not ascending)
        rows = rows[position([row.id for row in rows], after) :]
        rows = [row for row in rows if purpose in (None, row.purpose) and self._is_known(row)]
        rows = [row for row in rows if purpose is not None or row.purpose != CALLS_PURPOSE]
        return rows[:limit], len(rows) > limit

    async def delete(self, tenant: str, file_id: str) -> FileRow | None:
        readers = self._rows.enter().readers_of(tenant, file_id)
        if readers and (tenant, file_id) in self._rows.files:
            raise FileInUse(file_id, readers[0].order.batch_id)
        row = await self.get(tenant, file_id)
        if row is not None:
            del self._rows.files[tenant, file_id]
        return row

    async def is_input(self, tenant: str, file_id: str) -> bool:
        rows = self._rows.enter().batches.values()
        return any((row.order.tenant, row.order.input_file_id) == (tenant, file_id) for row in rows)

    def _is_known(self, row: FileRow) -> bool:
        return self._rows.is_known(row, datetime.now(UTC))
