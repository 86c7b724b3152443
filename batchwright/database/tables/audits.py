"""Table with the result of the latest audit. An audit compares rows, workflow runs and files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.audit import AuditCount
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class RecordedAudit(NamedTuple):
    """Numbers of differences of one kind that the latest audit found and left, and when that audit ended.

    Before the first audit, the counts are 0, and `at` is the time when the table was created.
    """

    counted: AuditCount
    at: datetime


class AuditsTable(Protocol):
    async def record(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        """Store the result of an audit that ended at `at`: the counts by kind of difference.

        Counts of a later audit are not replaced.
        """
        ...

    async def latest(self) -> Mapping[str, RecordedAudit]:
        """Return the result of the latest audit, by kind of difference."""
        ...


@dataclass(frozen=True)
class AuditQueries:
    record: str
    latest: str


class PostgresAudits(AuditsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(AuditQueries, "audits")

    async def record(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        kinds = sorted(counts)
        found, left = [counts[kind].found for kind in kinds], [counts[kind].left for kind in kinds]
        await self._connections.execute(self._sql.record, kinds, found, left, at)

    async def latest(self) -> Mapping[str, RecordedAudit]:
        rows = await self._connections.fetch(self._sql.latest)
        return {
            row["kind"]: RecordedAudit(
                AuditCount(found=row["found"], left=row["unrepaired"]), row["audited_at"]
            )
            for row in rows
        }
