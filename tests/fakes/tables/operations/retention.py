"""Fake of the queries that retention uses to find and delete expired data, in memory.

It passes the tests of the PostgreSQL table.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from batchwright.contracts.temporal_payloads.retention import RetentionKind, SweepPosition
from batchwright.database.records import BatchRow, FileRow
from batchwright.database.tables.operations.retention import EndedItem, RetentionTable, StorageMark
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.rows import Rows, files_follow, slices

_LAST = datetime.max.replace(tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
T = TypeVar("T", FileRow, EndedItem)


class MemoryRetention(RetentionTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def expired_files(self, before: datetime, after: SweepPosition, limit: int) -> list[FileRow]:
        files = [
            row
            for row in self._rows.enter().files.values()
            if not self._is_read(row, before) and not self._rows.is_scheduled(row)
        ]
        return _page(((row.expires_at, row.tenant, row.id, row) for row in files), before, after, limit)

    async def remove_file(self, row: FileRow) -> bool:
        found = self._rows.enter().files.get((row.tenant, row.id))
        if found is None or found.storage_key != row.storage_key or self._rows.readers_of(row.tenant, row.id):
            return False
        if self._rows.is_scheduled(row):
            return False
        del self._rows.files[row.tenant, row.id]
        return True

    async def ended_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        found = [ended for ended in self._ended() if (ended.tenant, ended.id) not in self._rows.cleared]
        found = [ended for ended in found if not _keeps(self._rows.batches[ended.tenant, ended.id])]
        return _page(((row.ended_at, row.tenant, row.id, row) for row in found), before, after, limit)

    async def record_sweep(self, batch: EndedItem, at: datetime) -> bool:
        cleared = self._rows.enter().cleared
        is_first = (batch.tenant, batch.id) in self._rows.batches and (batch.tenant, batch.id) not in cleared
        if is_first:
            cleared[batch.tenant, batch.id] = at
            row = self._rows.batches[batch.tenant, batch.id]
            swept = row.model_copy(update={"files_pending_until": None})
            self._rows.batches[batch.tenant, batch.id] = swept
        for progress in slices(self._rows, batch.tenant, batch.id):
            del self._rows.progress[batch.tenant, batch.id, progress.model, progress.number]
        return is_first

    async def old_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        cleared = self._rows.enter().cleared
        found = [row for row in self._ended() if (row.tenant, row.id) in cleared and not self._has_files(row)]
        found = [row for row in found if self._is_old(row, before)]
        return _page(((row.ended_at, row.tenant, row.id, row) for row in found), _LAST, after, limit)

    def _is_old(self, row: EndedItem, before: datetime) -> bool:
        rolling = self._rows.batches[row.tenant, row.id].order.policy.rolling
        return row.ended_at <= before or (
            rolling is not None and row.ended_at <= self._rows.clock() - timedelta(days=2)
        )

    async def remove_batch(self, batch: EndedItem) -> bool:
        if (batch.tenant, batch.id) not in self._rows.enter().cleared:
            return False
        return self._rows.remove_batch(batch.tenant, batch.id)

    async def old_uploads(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        rows = self._rows.enter()
        found = [
            EndedItem(row.tenant, row.id, row.expires_at)
            for key, row in rows.uploads.items()
            if key in rows.swept
        ]
        return _page(((row.ended_at, row.tenant, row.id, row) for row in found), before, after, limit)

    async def remove_upload(self, upload: EndedItem) -> bool:
        if self._rows.enter().swept.pop((upload.tenant, upload.id), None) is None:
            return False
        return self._rows.uploads.pop((upload.tenant, upload.id), None) is not None

    async def count_idempotency_keys(self, before: datetime) -> int:
        return sum(claim.created_at <= before for claim in self._rows.enter().claims.values())

    async def remove_idempotency_keys(self, before: datetime, limit: int) -> int:
        claims = self._rows.enter().claims
        old = [key for key, claim in claims.items() if claim.created_at <= before][:limit]
        for key in old:
            del claims[key]
        return len(old)

    async def tenants(self, after: str, limit: int) -> list[str]:
        rows = self._rows.enter()
        names = {tenant for table in (rows.files, rows.batches, rows.uploads) for tenant, _ in table}
        return sorted(name for name in names if name > after)[:limit]

    async def storage_keys(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        files = self._rows.enter().files
        return {id: files[tenant, id].storage_key for id in ids if (tenant, id) in files}

    async def open_uploads(self, tenant: str, ids: Sequence[str]) -> frozenset[str]:
        rows = self._rows.enter()
        return frozenset(id for id in ids if (tenant, id) in rows.uploads and (tenant, id) not in rows.swept)

    async def live_batches(self, tenant: str) -> frozenset[str]:
        batches = [row for (owner, _), row in self._rows.enter().batches.items() if owner == tenant]
        return frozenset(row.order.batch_id for row in batches if row.status in LIVE_STATES or _keeps(row))

    async def miscounted(self) -> list[BatchRow]:
        rows = self._rows.enter().batches.values()
        ended = [row for row in rows if row.status.is_terminal and (row.output_file_id or row.error_file_id)]
        return [row for row in ended if row.completed + row.failed != row.total]

    async def settled_files(
        self, tenant: str, after: str, before: datetime, now: datetime, limit: int
    ) -> list[FileRow]:
        found = [
            row
            for row in self._rows.enter().files.values()
            if row.tenant == tenant and row.id > after and row.created_at <= before
        ]
        found = [row for row in found if row.expires_at is None or row.expires_at > now]
        return sorted(found, key=lambda row: row.id)[:limit]

    async def record_success(self, kind: RetentionKind, at: datetime) -> None:
        successes = self._rows.enter().successes
        successes[kind] = max(at, successes.get(kind, at))

    async def successes(self) -> dict[str, datetime]:
        return {**dict.fromkeys(RetentionKind, _FIRST), **self._rows.enter().successes}

    async def mark(self) -> StorageMark:
        return StorageMark("memory", self._rows.enter().marked_at)

    async def record_mark(self, at: datetime) -> None:
        rows = self._rows.enter()
        rows.marked_at = rows.marked_at or at

    def _is_read(self, file: FileRow, before: datetime) -> bool:
        readers = [
            row
            for row in self._rows.batches.values()
            if (row.order.tenant, row.order.input_file_id) == (file.tenant, file.id)
        ]
        return any(
            (ended := _ended_at(row)) is None or ended > before or files_follow(row) for row in readers
        )

    def _ended(self) -> list[EndedItem]:
        rows = self._rows.enter().batches.items()
        return [EndedItem(*key, ended) for key, row in rows if (ended := _ended_at(row)) is not None]

    def _has_files(self, batch: EndedItem) -> bool:
        row = self._rows.batches[batch.tenant, batch.id]
        ids = (row.output_file_id, row.error_file_id)
        return any((batch.tenant, id) in self._rows.files for id in ids if id is not None)


def _keeps(row: BatchRow) -> bool:
    kept = row.results_kept_until is not None and row.results_kept_until > datetime.now(UTC)
    return kept or files_follow(row)


def _ended_at(row: BatchRow) -> datetime | None:
    return row.completed_at or row.failed_at or row.expired_at or row.cancelled_at


def _page(
    found: Iterable[tuple[datetime | None, str, str, T]], before: datetime, after: SweepPosition, limit: int
) -> list[T]:
    place = (after.at or _FIRST, after.tenant, after.id)
    dated = [(at, tenant, id, row) for at, tenant, id, row in found if at is not None and at <= before]
    there = [row for *key, row in sorted(dated, key=lambda entry: entry[:3]) if tuple(key) > place]
    return there[:limit]
