"""Fake table of the findings of the last audit, in memory."""

from collections.abc import Mapping
from datetime import UTC, datetime

from batchwright.activities.audit.differences import DifferenceKind
from batchwright.contracts.audit import AuditCount
from batchwright.database.tables.audits import AuditsTable, RecordedAudit
from tests.fakes.tables.rows import Rows

_FIRST = datetime.min.replace(tzinfo=UTC)


class MemoryAudits(AuditsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def record(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        audits = self._rows.enter().audits
        for kind, count in counts.items():
            if kind not in audits or audits[kind].at <= at:
                audits[kind] = RecordedAudit(count, at)

    async def latest(self) -> Mapping[str, RecordedAudit]:
        audits = self._rows.enter().audits
        empty = {kind.value: RecordedAudit(AuditCount(), _FIRST) for kind in DifferenceKind}
        return empty | audits
