"""The table of idempotency keys."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.driver import Row, Session
from batchwright.database.files import Files
from batchwright.database.rows import FileRow
from batchwright.database.sql import queries
from batchwright.database.upload_rows import Claim, UploadRow
from batchwright.database.uploads import Uploads
from batchwright.database.uploads_base import ClaimsTable


@dataclass(frozen=True)
class ClaimQueries:
    find: str
    claim: str


class Claims(ClaimsTable):
    def __init__(self, connections: Connections, files: Files, uploads: Uploads) -> None:
        self._connections = connections
        self._files = files
        self._uploads = uploads
        self._sql = queries(ClaimQueries, "claims")

    async def find(self, tenant: str, operation: str, key: str, since: datetime) -> Claim | None:
        record = await self._connections.fetchrow(self._sql.find, tenant, operation, key, since)
        return None if record is None else _claim(record)

    async def claim(
        self, claim: Claim, since: datetime, row: FileRow | UploadRow | None = None
    ) -> Claim | None:
        async with self._connections.transaction() as session:
            record = await session.fetchrow(
                self._sql.claim,
                claim.tenant,
                claim.operation,
                claim.key,
                claim.fingerprint,
                claim.made,
                claim.created_at,
                since,
            )
            if record is not None:
                await self._insert(session, row)
                return None
            # A key that was there is not deleted but by age: what was too young for that is still here.
            held = await session.fetchrow(self._sql.find, claim.tenant, claim.operation, claim.key, since)
            assert held is not None
            return _claim(held)

    async def _insert(self, session: Session, row: FileRow | UploadRow | None) -> None:
        match row:
            case FileRow():
                await self._files.insert_by(session, row)
            case UploadRow():
                await self._uploads.insert_by(session, row)
            case None:
                pass


def _claim(record: Row) -> Claim:
    return Claim.model_validate(dict(record.items()))
