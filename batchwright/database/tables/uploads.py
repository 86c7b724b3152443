"""Tables of uploads and of their parts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.temporal_payloads.retention import SWEEP_START, SweepPosition
from batchwright.contracts.terms import Quota
from batchwright.database.driver import Session
from batchwright.database.errors import UnknownUpload, UploadClosed, UploadFull
from batchwright.database.list_positions import FIRST_POSITION
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import FileRow, PartRow, UploadRow, parse_row
from batchwright.database.sql import queries
from batchwright.database.tables.files import PostgresFiles
from batchwright.database.tables.tenants.admissions import Admission, PostgresAdmissions


class UploadsTable(Protocol):
    """Uploads: files that clients send in parts. Clients can change only uploads that are `pending`."""

    async def insert(self, row: UploadRow) -> None:
        """Insert the row of an upload. If the tenant already has an upload with this id, nothing changes."""
        ...

    async def get(self, tenant: str, upload_id: str) -> UploadRow | None: ...

    async def add_part(
        self, part: PartRow, *, at: datetime, max_bytes: int, max_parts: int, storage_limit: int = 0
    ) -> None:
        """Insert the row of a part of an upload.

        Args:
            at: current time, which decides if the upload has expired.
            max_bytes: limit of the total size of the upload's parts, in bytes.
            max_parts: limit of the number of parts.
            storage_limit: the tenant's quota of stored bytes; 0 for no limit. The announced size of the
                upload already counts towards this quota. If all parts together are larger than the announced
                size, their size counts instead.

        Raises:
            UnknownUpload: the tenant has no such upload.
            UploadClosed: the upload is completed, cancelled or expired.
            UploadFull: with this part, the upload would have more than `max_bytes` bytes or more than
                `max_parts` parts.
            QuotaExhausted: with this part, the tenant would exceed `storage_limit`.
        """
        ...

    async def parts(self, tenant: str, upload_id: str, ids: list[str]) -> dict[str, PartRow]:
        """Return the parts of an upload that have these ids, by id. Ids that do not exist are left out."""
        ...

    async def complete(self, upload: UploadRow, file: FileRow, completion: str) -> UploadRow:
        """Complete a `pending` upload: change its status, insert `file`, and delete the rows of its parts.

        Return the current row of the upload. If its status was not `pending`, nothing was changed. Raises
        UnknownUpload if the upload has no row.

        Args:
            file: row of the file that was assembled from the parts.
            completion: digest of the ids of the parts, in the client's order. It is stored in the row.
        """
        ...

    async def cancel(self, tenant: str, upload_id: str, at: datetime) -> UploadRow | None:
        """Change the status of an upload from `pending` to `cancelled`, and delete the rows of its parts.

        If the upload has another status or has expired, nothing changes. Return the current row, or None if
        the tenant has no such upload.
        """
        ...

    async def unswept(
        self, before: datetime, limit: int, after: SweepPosition = SWEEP_START
    ) -> list[UploadRow]:
        """Return uploads of all tenants that have expired but may still have objects in storage.

        The result has at most `limit` uploads that expired at the time `before` or earlier, sorted by the
        time of expiry. The first upload is the next one after the position `after`.
        """
        ...

    async def record_sweep(self, upload: UploadRow, at: datetime) -> None:
        """Record that the objects of an upload were deleted at `at`, and delete the rows of its parts.

        If the status of the upload is `pending`, change it to `expired`.
        """
        ...


@dataclass(frozen=True)
class UploadQueries:
    insert: str
    get: str
    lock: str
    insert_part: str
    parts: str
    complete: str
    cancel: str
    clear_parts: str
    unswept: str
    record_sweep: str


class PostgresUploads(UploadsTable):
    def __init__(
        self, connections: ConnectionPool, files: PostgresFiles, admissions: PostgresAdmissions
    ) -> None:
        self._connections = connections
        self._files, self._admissions = files, admissions
        self._sql = queries(UploadQueries, "uploads")

    async def insert(self, row: UploadRow) -> None:
        async with self._connections.session() as session:
            await self.insert_by(session, row)

    async def insert_by(self, session: Session, row: UploadRow) -> None:
        """Insert the row of an upload in the transaction of `session`."""
        await session.execute(
            self._sql.insert,
            row.tenant,
            row.id,
            row.purpose,
            row.filename,
            row.mime_type,
            row.bytes,
            row.expires_after_seconds,
            row.status,
            row.created_at,
            row.expires_at,
            row.file_id,
            row.completion,
        )

    async def get(self, tenant: str, upload_id: str) -> UploadRow | None:
        if not upload_id.isprintable():  # PostgreSQL stores no NUL, so no row can match
            return None
        record = await self._connections.fetchrow(self._sql.get, tenant, upload_id)
        return None if record is None else parse_row(UploadRow, record)

    async def add_part(
        self, part: PartRow, *, at: datetime, max_bytes: int, max_parts: int, storage_limit: int = 0
    ) -> None:
        tenant, upload_id = part.tenant, part.upload_id
        transaction = (
            self._admissions.transaction(tenant) if storage_limit else self._connections.transaction()
        )
        async with transaction as session:
            record = await session.fetchrow(self._sql.lock, tenant, upload_id)
            if record is None:
                raise UnknownUpload(upload_id)
            row, part_bytes = parse_row(UploadRow, record), record["part_bytes"] + part.bytes
            status = row.status_at(at)
            if status != "pending":
                raise UploadClosed(upload_id, status)
            if part_bytes > max_bytes or record["parts"] >= max_parts:
                raise UploadFull(upload_id)
            if storage_limit and part_bytes > row.bytes:
                quota = Quota.STORED_BYTES
                admission = Admission(tenant, upload_id, quota, part_bytes, storage_limit)
                await self._admissions.admit_by(session, admission)
                await self._admissions.release_by(session, tenant, upload_id)  # the row counts from now on
            await session.execute(
                self._sql.insert_part,
                tenant,
                upload_id,
                part.id,
                part.bytes,
                part.storage_key,
                part.created_at,
            )

    async def parts(self, tenant: str, upload_id: str, ids: list[str]) -> dict[str, PartRow]:
        storable_ids = [part_id for part_id in ids if part_id.isprintable()]
        records = await self._connections.fetch(self._sql.parts, tenant, upload_id, storable_ids)
        rows = [parse_row(PartRow, record) for record in records]
        return {row.id: row for row in rows}

    async def complete(self, upload: UploadRow, file: FileRow, completion: str) -> UploadRow:
        async with self._connections.transaction() as session:
            row = await self._locked(session, upload.tenant, upload.id)
            if row.status != "pending":
                return row
            await self._files.insert_by(session, file)
            await session.execute(self._sql.clear_parts, upload.tenant, upload.id)
            await session.execute(self._sql.complete, upload.tenant, upload.id, file.id, completion)
            return await self._locked(session, upload.tenant, upload.id)

    async def cancel(self, tenant: str, upload_id: str, at: datetime) -> UploadRow | None:
        if not upload_id.isprintable():
            return None
        async with self._connections.transaction() as session:
            await session.execute(self._sql.cancel, tenant, upload_id, at)
            record = await session.fetchrow(self._sql.get, tenant, upload_id)
            if record is not None and record["status"] == "cancelled":
                await session.execute(self._sql.clear_parts, tenant, upload_id)
        return None if record is None else parse_row(UploadRow, record)

    async def unswept(
        self, before: datetime, limit: int, after: SweepPosition = SWEEP_START
    ) -> list[UploadRow]:
        place = (after.at or FIRST_POSITION[0], after.tenant, after.id)
        records = await self._connections.fetch(self._sql.unswept, before, *place, limit)
        return [parse_row(UploadRow, record) for record in records]

    async def record_sweep(self, upload: UploadRow, at: datetime) -> None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.record_sweep, upload.tenant, upload.id, at)
            await session.execute(self._sql.clear_parts, upload.tenant, upload.id)

    async def _locked(self, session: Session, tenant: str, upload_id: str) -> UploadRow:
        record = await session.fetchrow(self._sql.lock, tenant, upload_id)
        if record is None:
            raise UnknownUpload(upload_id)
        return parse_row(UploadRow, record)
