"""The tables of uploads and of their parts."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.contracts.retention import START, Place
from batchwright.database.connection import Connections
from batchwright.database.driver import Row, Session
from batchwright.database.errors import UnknownUpload, UploadClosed, UploadFull
from batchwright.database.files import FIRST, Files
from batchwright.database.rows import FileRow
from batchwright.database.sql import queries
from batchwright.database.upload_rows import PartRow, UploadRow
from batchwright.database.uploads_base import UploadsTable


@dataclass(frozen=True)
class UploadQueries:
    insert: str
    get: str
    lock: str
    held: str
    insert_part: str
    parts: str
    complete: str
    cancel: str
    clear_parts: str
    unswept: str
    swept: str


class Uploads(UploadsTable):
    def __init__(self, connections: Connections, files: Files) -> None:
        self._connections = connections
        self._files = files
        self._sql = queries(UploadQueries, "uploads")

    async def insert(self, row: UploadRow) -> None:
        async with self._connections.session() as session:
            await self.insert_by(session, row)

    async def insert_by(self, session: Session, row: UploadRow) -> None:
        """The same within the caller's transaction."""
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
        if not upload_id.isprintable():  # PostgreSQL takes no NUL, so there is none to find
            return None
        record = await self._connections.fetchrow(self._sql.get, tenant, upload_id)
        return None if record is None else _upload_row(record)

    async def add_part(self, part: PartRow, *, at: datetime, most_bytes: int, most_parts: int) -> None:
        async with self._connections.transaction() as session:
            row = await self._locked(session, part.tenant, part.upload_id)
            status = row.status_at(at)
            if status != "pending":
                raise UploadClosed(part.upload_id, status)
            held = await session.fetchrow(self._sql.held, part.tenant, part.upload_id)
            if held and (held["bytes"] + part.bytes > most_bytes or held["parts"] >= most_parts):
                raise UploadFull(part.upload_id)
            await session.execute(
                self._sql.insert_part,
                part.tenant,
                part.upload_id,
                part.id,
                part.bytes,
                part.storage_key,
                part.created_at,
            )

    async def parts(self, tenant: str, upload_id: str, ids: list[str]) -> dict[str, PartRow]:
        asked = [part_id for part_id in ids if part_id.isprintable()]
        records = await self._connections.fetch(self._sql.parts, tenant, upload_id, asked)
        rows = [PartRow.model_validate(dict(record.items())) for record in records]
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
        return None if record is None else _upload_row(record)

    async def unswept(self, before: datetime, limit: int, after: Place = START) -> list[UploadRow]:
        place = (after.at or FIRST[0], after.tenant, after.id)
        records = await self._connections.fetch(self._sql.unswept, before, *place, limit)
        return [_upload_row(record) for record in records]

    async def swept(self, upload: UploadRow, at: datetime) -> None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.swept, upload.tenant, upload.id, at)
            await session.execute(self._sql.clear_parts, upload.tenant, upload.id)

    async def _locked(self, session: Session, tenant: str, upload_id: str) -> UploadRow:
        record = await session.fetchrow(self._sql.lock, tenant, upload_id)
        if record is None:
            raise UnknownUpload(upload_id)
        return _upload_row(record)


def _upload_row(record: Row) -> UploadRow:
    return UploadRow.model_validate(dict(record.items()))
