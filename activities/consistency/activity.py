"""The activity of the daily consistency check. A Temporal schedule starts the check.

The check finds differences between the database rows, workflow runs, files and line counts of batches, and
reports them. If the setting `consistency_repair` is on, it also repairs the differences that are safe to
repair.
"""

import logging
from datetime import UTC, datetime

from temporalio import activity

from batchwright.activities.consistency.check import ComparedSources, ConsistencyCheck
from batchwright.activities.consistency.report import ConsistencyReport
from batchwright.activities.consistency.workflow_runs import BatchRunSource
from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.contracts.temporal_payloads.consistency import (
    ConsistencyCheckActivities,
    ConsistencyCheckOrder,
    ConsistencyCheckResult,
)
from batchwright.database.database import Database
from batchwright.settings import Settings
from batchwright.storage.base import Storage

logger = logging.getLogger(__name__)
_MAX_LOGGED = 100


class ConsistencyChecking(ConsistencyCheckActivities):
    def __init__(
        self, database: Database, storage: Storage, runs: BatchRunSource, settings: Settings
    ) -> None:
        self._database, self._storage, self._runs = database, storage, runs
        self._settings = settings

    @activity.defn
    async def check_consistency(self, order: ConsistencyCheckOrder) -> ConsistencyCheckResult:
        """Compare the database with Temporal and storage.

        Return the numbers of compared rows, workflow runs and files, and the number of differences by kind.
        Differences are also logged. They do not make the activity fail.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable, TemporalUnavailable: the service does not respond. The
                consistency check is retried from the beginning.
        """
        repair = self._settings.consistency_repair
        async with heartbeating(), translated():
            sources = ComparedSources(
                self._database,
                self._storage,
                self._runs,
                self._settings,
                now=datetime.now(UTC),
                repair=repair,
            )
            report = await ConsistencyCheck(sources).run()
            await store_counts(self._database, report)
        for difference in report.differences[:_MAX_LOGGED]:
            logger.warning("consistency difference", extra=difference.model_dump(mode="json"))
        compared = {"rows": report.rows, "runs": report.runs, "files": report.files}
        logger.info("consistency check done", extra={**compared, "left": report.left, "repair": repair})
        return ConsistencyCheckResult(
            **compared, counts={kind.value: count for kind, count in report.counts.items()}
        )


async def store_counts(database: Database, report: ConsistencyReport) -> None:
    """Store the report's counts in the database. Metrics show them until the next consistency check.

    Raises:
        DatabaseUnavailable: the counts are not stored.
    """
    counts = {kind.value: count for kind, count in report.counts.items()}
    await database.consistency_checks.record(counts, datetime.now(UTC))
