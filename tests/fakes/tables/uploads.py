"""Fake tables of uploads and idempotency keys, in memory. They pass the tests of the PostgreSQL tables."""

from collections.abc import Sequence
from datetime import datetime

from batchwright.contracts.temporal_payloads.retention import SWEEP_START, SweepPosition
from batchwright.contracts.terms import Quota
from batchwright.database.errors import UnknownUpload, UploadClosed, UploadFull
from batchwright.database.records import FileRow, IdempotencyClaim, PartRow, UploadRow
from batchwright.database.tables.idempotency import IdempotencyTable
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.database.tables.uploads import UploadsTable
from tests.fakes.tables.rows import Rows
from tests.fakes.tables.tenants.admissions import MemoryAdmissions


class MemoryUploads(UploadsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._admissions = MemoryAdmissions(rows)

    async def insert(self, row: UploadRow) -> None:
        self._rows.enter().uploads.setdefault((row.tenant, row.id), row)

    async def get(self, tenant: str, upload_id: str) -> UploadRow | None:
        return self._rows.enter().uploads.get((tenant, upload_id))

    async def add_part(
        self, part: PartRow, *, at: datetime, max_bytes: int, max_parts: int, storage_limit: int = 0
    ) -> None:
        upload = self._row(part.tenant, part.upload_id)
        status = upload.status_at(at)
        if status != "pending":
            raise UploadClosed(part.upload_id, status)
        held = [row for key, row in self._rows.parts.items() if key[:2] == (part.tenant, part.upload_id)]
        part_bytes = sum(row.bytes for row in held) + part.bytes
        if len(held) >= max_parts or part_bytes > max_bytes:
            raise UploadFull(part.upload_id)
        if storage_limit and part_bytes > upload.bytes:
            quota = Quota.STORED_BYTES
            await self._admissions.admit(Admission(part.tenant, upload.id, quota, part_bytes, storage_limit))
            await self._admissions.release(part.tenant, upload.id)
        self._rows.parts.setdefault((part.tenant, part.upload_id, part.id), part)

    async def parts(self, tenant: str, upload_id: str, ids: list[str]) -> dict[str, PartRow]:
        parts = self._rows.enter().parts
        return {
            part_id: parts[tenant, upload_id, part_id]
            for part_id in ids
            if (tenant, upload_id, part_id) in parts
        }

    async def complete(self, upload: UploadRow, file: FileRow, completion: str) -> UploadRow:
        row = self._row(upload.tenant, upload.id)
        if row.status != "pending":
            return row
        self._rows.files[file.tenant, file.id] = file
        self._clear(row)
        return self._put(row, status="completed", file_id=file.id, completion=completion)

    async def cancel(self, tenant: str, upload_id: str, at: datetime) -> UploadRow | None:
        row = await self.get(tenant, upload_id)
        if row is None or row.status_at(at) != "pending":
            return row
        self._clear(row)
        return self._put(row, status="cancelled")

    async def unswept(
        self, before: datetime, limit: int, after: SweepPosition = SWEEP_START
    ) -> list[UploadRow]:
        rows = self._rows.enter()
        found = [
            row for key, row in rows.uploads.items() if key not in rows.swept and row.expires_at <= before
        ]
        found = [row for row in found if after.at is None or _key(row) > (after.at, after.tenant, after.id)]
        return sorted(found, key=_key)[:limit]

    async def record_sweep(self, upload: UploadRow, at: datetime) -> None:
        row = self._row(upload.tenant, upload.id)
        self._rows.swept[row.tenant, row.id] = at
        self._clear(row)
        self._put(row, status="expired" if row.status == "pending" else row.status)

    def _row(self, tenant: str, upload_id: str) -> UploadRow:
        row = self._rows.enter().uploads.get((tenant, upload_id))
        if row is None:
            raise UnknownUpload(upload_id)
        return row

    def _put(self, row: UploadRow, **changes: object) -> UploadRow:
        changed = row.model_copy(update=changes)
        self._rows.uploads[row.tenant, row.id] = changed
        return changed

    def _clear(self, row: UploadRow) -> None:
        for key in [key for key in self._rows.parts if key[:2] == (row.tenant, row.id)]:
            del self._rows.parts[key]


def _key(row: UploadRow) -> tuple[datetime, str, str]:
    return row.expires_at, row.tenant, row.id


class MemoryIdempotency(IdempotencyTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._admissions = MemoryAdmissions(rows)

    async def find(self, tenant: str, operation: str, key: str, since: datetime) -> IdempotencyClaim | None:
        held = self._rows.enter().claims.get((tenant, operation, key))
        return held if held is not None and held.created_at > since else None

    async def claim(
        self,
        claim: IdempotencyClaim,
        since: datetime,
        row: FileRow | UploadRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> IdempotencyClaim | None:
        held = await self.find(claim.tenant, claim.operation, claim.key, since)
        if held is not None:
            return held
        await self._admissions.admit_all(admissions)
        if admissions and row is not None:
            await self._admissions.release(row.tenant, row.id)
        self._rows.claims[claim.tenant, claim.operation, claim.key] = claim
        match row:
            case FileRow():
                self._rows.files[row.tenant, row.id] = row
            case UploadRow():
                self._rows.uploads[row.tenant, row.id] = row
            case None:
                pass
        return None
