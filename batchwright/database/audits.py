"""What the last audit found, in PostgreSQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from batchwright.contracts.audit import AuditCount
from batchwright.database.audits_base import Audited, AuditsTable
from batchwright.database.connection import Connections
from batchwright.database.sql import queries


@dataclass(frozen=True)
class AuditQueries:
    note: str
    latest: str


class Audits(AuditsTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(AuditQueries, "audits")

    async def note(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        kinds = sorted(counts)
        found, left = [counts[kind].found for kind in kinds], [counts[kind].left for kind in kinds]
        await self._connections.execute(self._sql.note, kinds, found, left, at)

    async def latest(self) -> Mapping[str, Audited]:
        rows = await self._connections.fetch(self._sql.latest)
        return {
            row["kind"]: Audited(AuditCount(found=row["found"], left=row["still_there"]), row["audited_at"])
            for row in rows
        }
