"""The scheduled audit: compares, mends where the setting allows it, and notes what it found."""

import logging
from datetime import UTC, datetime

from temporalio import activity

from activities.audit.compare import Audit, Sources
from activities.audit.differences import Report
from activities.audit.runs import Runs
from activities.errors import translated
from activities.heartbeat import beating
from batchwright.contracts.audit import AuditActivities, AuditOrder, AuditResult
from batchwright.database.base import DatabaseLike
from batchwright.settings import Settings
from batchwright.storage.base import Storage

logger = logging.getLogger(__name__)
_LOGGED = 100


class Auditing(AuditActivities):
    def __init__(self, database: DatabaseLike, storage: Storage, runs: Runs, settings: Settings) -> None:
        self._database, self._storage, self._runs = database, storage, runs
        self._settings = settings

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        """A second one finds what is left. Differences are logged and counted, not raised.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable: retried from the beginning, as Temporal's RPCError is.
        """
        repair = self._settings.audit_repair
        async with beating(), translated():
            sources = Sources(
                self._database,
                self._storage,
                self._runs,
                self._settings,
                now=datetime.now(UTC),
                repair=repair,
            )
            report = await Audit(sources).run()
            await noted(self._database, report)
        for one in report.differences[:_LOGGED]:
            logger.warning("audit: a difference", extra=one.model_dump(mode="json"))
        looked = {"rows": report.rows, "runs": report.runs, "files": report.files}
        logger.info("audit done", extra={**looked, "left": report.left, "repair": repair})
        return AuditResult(**looked, counts={kind.value: count for kind, count in report.counts.items()})


async def noted(database: DatabaseLike, report: Report) -> None:
    """What metrics show until the next audit. Raises DatabaseUnavailable."""
    counts = {kind.value: count for kind, count in report.counts.items()}
    await database.audits.note(counts, datetime.now(UTC))
