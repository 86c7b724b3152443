"""A fake table of the differences that the latest consistency check of each kind found, in memory."""

from collections.abc import Mapping
from datetime import UTC, datetime

from batchwright.activities.consistency.report import DifferenceKind
from batchwright.contracts.temporal_payloads.consistency import DifferenceCount
from batchwright.database.tables.operations.consistency_checks import (
    ConsistencyChecksTable,
    RecordedConsistencyCheck,
)
from tests.fakes.tables.rows import Rows

_FIRST = datetime.min.replace(tzinfo=UTC)


class MemoryConsistencyChecks(ConsistencyChecksTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def record(self, counts: Mapping[str, DifferenceCount], at: datetime) -> None:
        checks = self._rows.enter().consistency_checks
        for kind, count in counts.items():
            if kind not in checks or checks[kind].at <= at:
                checks[kind] = RecordedConsistencyCheck(count, at)

    async def latest(self) -> Mapping[str, RecordedConsistencyCheck]:
        checks = self._rows.enter().consistency_checks
        empty = {kind.value: RecordedConsistencyCheck(DifferenceCount(), _FIRST) for kind in DifferenceKind}
        return empty | checks
