"""Fake of the deletion of batches, in memory. It passes the tests of the PostgreSQL table."""

from datetime import UTC, datetime

from batchwright.contracts.temporal_payloads.batch import RerunKind
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import ResultsInUse
from batchwright.database.tables.batches.batch_deletions import BatchDeletions
from tests.fakes.tables.rows import Rows


class MemoryBatchDeletions(BatchDeletions):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def begin(self, tenant: str, batch_id: str, *, keep_files: bool) -> None:
        rows = self._rows.enter()
        order = rows.reruns.get((tenant, batch_id, RerunKind.RESUME))
        reader = order and rows.batches.get((tenant, order.batch_id))
        if reader is not None and reader.status is BatchStatus.VALIDATING:
            raise ResultsInUse(batch_id, reader.order.batch_id)
        row = rows.batches.get((tenant, batch_id))
        if row is not None:
            now = datetime.now(UTC)
            kept_until = min(row.results_kept_until or now, now)
            rows.batches[tenant, batch_id] = row.model_copy(update={"results_kept_until": kept_until})
        for file_id in (row.output_file_id, row.error_file_id) if row is not None and not keep_files else ():
            if file_id is not None:
                rows.files.pop((tenant, file_id), None)

    async def remove(self, tenant: str, batch_id: str, at: datetime) -> bool:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or not row.status.is_terminal or row.files_pending:
            return False
        self._rows.deleted[tenant, batch_id] = at
        self._rows.admissions.pop((tenant, batch_id), None)
        return self._rows.remove_batch(tenant, batch_id)

    async def is_deleted(self, tenant: str, batch_id: str) -> bool:
        return (tenant, batch_id) in self._rows.enter().deleted

    async def forget(self, before: datetime) -> None:
        deleted = self._rows.enter().deleted
        for key in [key for key, at in deleted.items() if at <= before]:
            del deleted[key]
