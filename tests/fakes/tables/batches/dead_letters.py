"""Fake table of dead letters (lines that failed for good), in memory.

It passes the tests of the PostgreSQL table.
"""

from collections.abc import Sequence

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.records import FileRow
from batchwright.database.tables.batches.dead_letters import DeadLettersTable, StoredDeadLetter
from batchwright.database.tables.tenants.admissions import Admission
from tests.fakes.tables.rows import Rows, position
from tests.fakes.tables.tenants.admissions import MemoryAdmissions


class MemoryDeadLetters(DeadLettersTable):
    def __init__(self, rows: Rows) -> None:
        self._rows, self._admissions = rows, MemoryAdmissions(rows)

    async def get(self, id: str) -> StoredDeadLetter | None:
        found = self._rows.enter().dead_letters.get(id)
        return None if found is None else self._seen(found)

    async def page(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> tuple[list[StoredDeadLetter], bool]:
        rows = self._rows.enter().dead_letters.values()
        own = [row for row in rows if tenant in (None, row.tenant)]
        own.sort(key=lambda row: (row.dead_letter.failed_at, row.dead_letter.id), reverse=True)
        behind = own[position([row.dead_letter.id for row in own], after) :]
        found = [self._seen(row) for row in behind if batch_id in (None, row.batch_id)]
        return found[:limit], len(found) > limit

    async def retryable_batches(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str
    ) -> list[tuple[str, str]]:
        rows = self._rows.enter()
        found = {
            (row.tenant, row.batch_id)
            for row in map(self._seen, rows.dead_letters.values())
            if row.retry is None or (row.tenant, row.retry.batch_id) not in rows.batches
        }
        wanted = [
            (owner, id)
            for owner, id in sorted(found, key=lambda key: key[1])
            if id > after and tenant in (None, owner) and batch_id in (None, id)
        ]
        return wanted[:limit]

    async def unretried_ids(self, tenant: str, batch_id: str) -> list[str]:
        rows = map(self._seen, self._rows.enter().dead_letters.values())
        found = [row for row in rows if (row.tenant, row.batch_id, row.retry) == (tenant, batch_id, None)]
        return [row.dead_letter.id for row in sorted(found, key=lambda row: row.dead_letter.offset)]

    async def unstarted_retries(self, tenant: str, batch_id: str) -> list[BatchOrder]:
        rows = self._rows.enter()
        return [
            order
            for (owner, id), (origin, order) in rows.dead_letter_retries.items()
            if (owner, origin) == (tenant, batch_id) and (owner, id) not in rows.batches
        ]

    async def claim(
        self, ids: Sequence[str], order: BatchOrder, file: FileRow, *, admissions: Sequence[Admission] = ()
    ) -> bool:
        assert order.origin is not None
        rows, origin = self._rows.enter(), order.origin.batch_id
        found = [self._seen(rows.dead_letters[id]) for id in ids if id in rows.dead_letters]
        mine = [row for row in found if (row.tenant, row.batch_id, row.retry) == (order.tenant, origin, None)]
        if len(mine) != len(ids):
            return False
        await self._admissions.admit_all(admissions)
        for row in mine:
            rows.dead_letters[row.dead_letter.id] = row._replace(retry=order)
        rows.dead_letter_retries[order.tenant, order.batch_id] = (origin, order)
        rows.files[file.tenant, file.id] = file
        await self._admissions.release(file.tenant, file.id)
        return True

    async def delete(self, id: str) -> bool:
        return self._rows.enter().dead_letters.pop(id, None) is not None

    def _seen(self, row: StoredDeadLetter) -> StoredDeadLetter:
        """Return the dead letter as callers may see it: if the batch that retried it was deleted, without
        this retry.
        """
        known = row.retry is not None and (row.tenant, row.retry.batch_id) in self._rows.dead_letter_retries
        return row if known else row._replace(retry=None)
