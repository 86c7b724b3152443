"""Fake table of reruns (retries and resumes of a batch), in memory.

It passes the tests of the PostgreSQL table.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.database.errors import ResultsGone, UnknownBatch
from batchwright.database.records import FileRow
from batchwright.database.tables.batches.reruns import RerunsTable
from batchwright.database.tables.tenants.admissions import Admission
from tests.fakes.tables.rows import Rows
from tests.fakes.tables.tenants.admissions import MemoryAdmissions


class MemoryReruns(RerunsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows, self._admissions = rows, MemoryAdmissions(rows)

    async def find(self, tenant: str, origin: SourceBatch) -> BatchOrder | None:
        return self._rows.enter().reruns.get((tenant, origin.batch_id, origin.kind))

    async def claim(
        self,
        order: BatchOrder,
        origin: SourceBatch,
        file: FileRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> BatchOrder:
        rows, key = self._rows.enter(), (order.tenant, origin.batch_id)
        row = rows.batches.get(key)
        if row is None:
            raise UnknownBatch(origin.batch_id)
        kept_until = row.results_kept_until
        gone = kept_until is not None and kept_until <= datetime.now(UTC)
        if gone and origin.kind is RerunKind.RESUME and (*key, origin.kind) not in rows.reruns:
            raise ResultsGone(origin.batch_id)
        if (*key, origin.kind) not in rows.reruns:
            await self._admissions.admit_all(admissions)
        first = rows.reruns.setdefault((*key, origin.kind), order)
        if first is order:
            if file is not None:
                rows.files[file.tenant, file.id] = file
                await self._admissions.release(file.tenant, file.id)
            if kept_until is not None:
                kept_until = max(kept_until, order.deadline)
                rows.batches[key] = row.model_copy(update={"results_kept_until": kept_until})
        return first

    async def keep_results(self, order: BatchOrder) -> None:
        origin = order.origin
        if origin is None or origin.kind is not RerunKind.RESUME:
            return
        rows = self._rows.enter().batches
        row = rows.get((order.tenant, origin.batch_id))
        kept_until = row and row.results_kept_until
        if row is None or (kept_until is not None and kept_until <= datetime.now(UTC)):
            raise ResultsGone(origin.batch_id)
        if kept_until is not None:
            kept = {"results_kept_until": max(kept_until, order.deadline)}
            rows[order.tenant, origin.batch_id] = row.model_copy(update=kept)
