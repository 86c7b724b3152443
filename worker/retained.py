"""What control workers show of retention and audits: when each last succeeded, and what differs."""

from batchwright.database.audits_base import AuditsTable
from batchwright.database.retention_base import RetentionTable
from batchwright.telemetry.metrics import Metrics


class Retained:
    def __init__(self, table: RetentionTable, audits: AuditsTable, metrics: Metrics) -> None:
        self._table, self._audits, self._metrics = table, audits, metrics

    async def look(self) -> None:
        """Raises DatabaseUnavailable; what was shown stays."""
        metrics = self._metrics
        for kind, at in (await self._table.successes()).items():
            metrics.retention_succeeded_at.labels(kind).set(at.timestamp())
        found = await self._audits.latest()
        for kind, (count, _) in found.items():
            metrics.audit_differences.labels(kind, "left").set(count.left)
            metrics.audit_differences.labels(kind, "repaired").set(count.found - count.left)
        if found:
            metrics.audited_at.set(min(audited.at for audited in found.values()).timestamp())
