"""Table of reruns: batches that retry or resume a batch that has ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.database.errors import ResultsGone, UnknownBatch
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import FileRow
from batchwright.database.sql import queries
from batchwright.database.tables.files import PostgresFiles
from batchwright.database.tables.tenants.admissions import Admission, PostgresAdmissions


class RerunsTable(Protocol):
    """Reruns: new batches that do a part of an ended batch again. There are two kinds:

    - A retry sends the failed lines of the ended batch again.
    - A resumption reads the input of the ended batch, and takes over the results that the batch already has.

    A batch has at most one rerun of each kind.
    """

    async def find(self, tenant: str, origin: SourceBatch) -> BatchOrder | None: ...

    async def claim(
        self,
        order: BatchOrder,
        origin: SourceBatch,
        file: FileRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> BatchOrder:
        """Store the new batch `order` as the rerun of an ended batch, insert `file`, and return `order`.

        A rerun is a new batch that retries or resumes the ended batch. If the ended batch already has a rerun
        of this kind, change nothing and return the BatchOrder of the existing rerun. Stored results of the
        ended batch are kept at least until the deadline of the returned batch.

        Args:
            order: describes the rerun. It is the argument that starts the rerun's workflow.
            origin: the ended batch, and the kind of the rerun.
            file: row of the rerun's input file; None if the rerun reads the input file of the ended batch.
            admissions: the amounts that the rerun and its file add to the used part of the tenant's quotas.
                If the rerun exists already, nothing is added. Concurrent requests for the same rerun
                therefore count once.

        Raises:
            UnknownBatch: the ended batch has no row.
            ResultsGone: the rerun is a resumption, and the results of the ended batch are no longer kept.
            QuotaExhausted: one of the amounts would exceed the limit of a quota. Nothing is stored.
        """
        ...

    async def keep_results(self, order: BatchOrder) -> None:
        """Keep the results of an ended batch at least until the deadline of the batch that resumes it.

        `order` describes the batch that resumes the ended batch. If `order` describes another kind of batch,
        do nothing.

        Raises:
            ResultsGone: the results of the ended batch are no longer kept.
        """
        ...


@dataclass(frozen=True)
class RerunQueries:
    find: str
    claim: str
    exists: str
    keep_longer: str
    keep_if_kept: str


class PostgresReruns(RerunsTable):
    def __init__(
        self, connections: ConnectionPool, files: PostgresFiles, admissions: PostgresAdmissions
    ) -> None:
        self._connections = connections
        self._files, self._admissions = files, admissions
        self._sql = queries(RerunQueries, "reruns")

    async def find(self, tenant: str, origin: SourceBatch) -> BatchOrder | None:
        row = await self._connections.fetchrow(self._sql.find, tenant, origin.batch_id, origin.kind)
        return None if row is None else BatchOrder.model_validate_json(row["made"])

    async def claim(
        self,
        order: BatchOrder,
        origin: SourceBatch,
        file: FileRow | None = None,
        *,
        admissions: Sequence[Admission] = (),
    ) -> BatchOrder:
        async with self._admissions.transaction_for(*admissions) as session:
            taken = await session.fetchrow(
                self._sql.claim,
                order.tenant,
                origin.batch_id,
                origin.kind,
                order.batch_id,
                order.model_dump_json(),
            )
            if taken is not None:
                for admission in admissions:
                    await self._admissions.admit_by(session, admission)
                if file is not None:
                    await self._files.insert_by(session, file)
                    await self._admissions.release_by(session, file.tenant, file.id)  # now the row counts
                await session.execute(self._sql.keep_longer, order.tenant, origin.batch_id, order.deadline)
                return order
            row = await session.fetchrow(self._sql.find, order.tenant, origin.batch_id, origin.kind)
            if row is None:
                found = await session.fetchrow(self._sql.exists, order.tenant, origin.batch_id)
                raise UnknownBatch(origin.batch_id) if found is None else ResultsGone(origin.batch_id)
            return BatchOrder.model_validate_json(row["made"])

    async def keep_results(self, order: BatchOrder) -> None:
        origin = order.origin
        if origin is None or origin.kind is not RerunKind.RESUME:
            return
        args = order.tenant, origin.batch_id, order.deadline
        if await self._connections.fetchrow(self._sql.keep_if_kept, *args) is None:
            raise ResultsGone(origin.batch_id)
