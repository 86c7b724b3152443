"""What the last audit found, in memory."""

from collections.abc import Mapping
from datetime import UTC, datetime

from activities.audit.differences import Kind
from batchwright.contracts.audit import AuditCount
from batchwright.database.audits_base import Audited, AuditsTable
from tests.fakes.rows import Rows

_FIRST = datetime.min.replace(tzinfo=UTC)


class MemoryAudits(AuditsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def note(self, counts: Mapping[str, AuditCount], at: datetime) -> None:
        audits = self._rows.enter().audits
        for kind, count in counts.items():
            if kind not in audits or audits[kind].at <= at:
                audits[kind] = Audited(count, at)

    async def latest(self) -> Mapping[str, Audited]:
        audits = self._rows.enter().audits
        made = {kind.value: Audited(AuditCount(), _FIRST) for kind in Kind}
        return made | audits
