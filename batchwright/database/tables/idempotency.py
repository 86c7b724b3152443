"""Table of idempotency keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.pool import ConnectionPool
from batchwright.database.records import FileRow, IdempotencyClaim, UploadRow, parse_row
from batchwright.database.sql import queries
from batchwright.database.tables.files import PostgresFiles
from batchwright.database.tables.tenants.admissions import Admission, PostgresAdmissions
from batchwright.database.tables.uploads import PostgresUploads


class IdempotencyTable(Protocol):
    """Idempotency keys of successful requests, each with the object that the request created.

    In all methods, a key that was created at the time `since` or earlier has expired, and counts as missing.
    """

    async def find(
        self, tenant: str, operation: str, key: str, since: datetime
    ) -> IdempotencyClaim | None: ...

    async def claim(
        self,
        claim: IdempotencyClaim,
        since: datetime,
        row: FileRow | UploadRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> IdempotencyClaim | None:
        """Store an idempotency key, insert `row` in the same transaction, and return None.

        If the key is already stored, change nothing and return the stored claim.

        Args:
            claim: the key, a digest of the request (its fingerprint), and the object that the request
                creates.
            since: a key that was created at this time or earlier has expired and is replaced.
            row: file or upload that the request creates; None if the request creates something else.
            admissions: the amounts that the request adds to the used part of the tenant's quotas. If the key
                is already stored, nothing is added. Concurrent requests with the same key therefore count
                once.

        Raises:
            QuotaExhausted: one of the amounts would exceed the limit of a quota. The key is not stored.
        """
        ...


@dataclass(frozen=True)
class IdempotencyQueries:
    find: str
    claim: str


class PostgresIdempotency(IdempotencyTable):
    def __init__(
        self,
        connections: ConnectionPool,
        files: PostgresFiles,
        uploads: PostgresUploads,
        admissions: PostgresAdmissions,
    ) -> None:
        self._connections = connections
        self._files, self._uploads, self._admissions = files, uploads, admissions
        self._sql = queries(IdempotencyQueries, "idempotency")

    async def find(self, tenant: str, operation: str, key: str, since: datetime) -> IdempotencyClaim | None:
        record = await self._connections.fetchrow(self._sql.find, tenant, operation, key, since)
        return None if record is None else parse_row(IdempotencyClaim, record)

    async def claim(
        self,
        claim: IdempotencyClaim,
        since: datetime,
        row: FileRow | UploadRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> IdempotencyClaim | None:
        async with self._admissions.transaction_for(*admissions) as session:
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
                for admission in admissions:
                    await self._admissions.admit_by(session, admission)
                if isinstance(row, FileRow):
                    await self._files.insert_by(session, row)
                elif row is not None:
                    await self._uploads.insert_by(session, row)
                if admissions and row is not None:  # from now on, the row counts
                    await self._admissions.release_by(session, row.tenant, row.id)
                return None
            # Keys are deleted by age only, so the one that was too young to be replaced still exists.
            held = await session.fetchrow(self._sql.find, claim.tenant, claim.operation, claim.key, since)
            assert held is not None
            return parse_row(IdempotencyClaim, held)
