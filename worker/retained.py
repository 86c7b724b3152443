"""What control workers show of retention: when each kind last succeeded."""

from batchwright.database.retention_base import RetentionTable
from batchwright.telemetry.metrics import Metrics


class Retained:
    def __init__(self, table: RetentionTable, metrics: Metrics) -> None:
        self._table, self._metrics = table, metrics

    async def look(self) -> None:
        """Raises DatabaseUnavailable; what was shown stays."""
        for kind, at in (await self._table.successes()).items():
            self._metrics.retention_succeeded_at.labels(kind).set(at.timestamp())
