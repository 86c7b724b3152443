"""The audit activity, run by a schedule: compare what is recorded about batches in different places.

It compares the rows, workflow runs, files and counts of batches. It repairs the differences that are safe to
repair if the setting allows it.
"""

import logging
from datetime import UTC, datetime

from temporalio import activity

from batchwright.activities.audit.compare import Audit, AuditSources
from batchwright.activities.audit.differences import AuditReport
from batchwright.activities.audit.runs import BatchRunSource
from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.contracts.audit import AuditActivities, AuditOrder, AuditResult
from batchwright.database.database import Database
from batchwright.settings import Settings
from batchwright.storage.base import Storage

logger = logging.getLogger(__name__)
_MAX_LOGGED = 100


class Auditing(AuditActivities):
    def __init__(
        self, database: Database, storage: Storage, runs: BatchRunSource, settings: Settings
    ) -> None:
        self._database, self._storage, self._runs = database, storage, runs
        self._settings = settings

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        """Run one audit. Return what was compared, and the number of differences of each kind.

        Differences are logged and counted. They do not make the activity fail.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable, TemporalUnavailable: the service does not respond. The
                audit is retried from the beginning.
        """
        repair = self._settings.audit_repair
        async with heartbeating(), translated():
            sources = AuditSources(
                self._database,
                self._storage,
                self._runs,
                self._settings,
                now=datetime.now(UTC),
                repair=repair,
            )
            report = await Audit(sources).run()
            await store_counts(self._database, report)
        for difference in report.differences[:_MAX_LOGGED]:
            logger.warning("audit difference", extra=difference.model_dump(mode="json"))
        compared = {"rows": report.rows, "runs": report.runs, "files": report.files}
        logger.info("audit done", extra={**compared, "left": report.left, "repair": repair})
        return AuditResult(**compared, counts={kind.value: count for kind, count in report.counts.items()})


async def store_counts(database: Database, report: AuditReport) -> None:
    """Store the report's counts in the database. Metrics show them until the next audit.

    Raises:
        DatabaseUnavailable: the counts are not stored.
    """
    counts = {kind.value: count for kind, count in report.counts.items()}
    await database.audits.record(counts, datetime.now(UTC))
