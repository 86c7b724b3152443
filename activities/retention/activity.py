"""The retention activity: delete expired data of one kind, in turns of about ten seconds."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from temporalio import activity

from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.activities.retention import expired, orphans
from batchwright.activities.retention.sweep_turn import TURN_SECONDS, RetentionTurn
from batchwright.contracts.temporal_payloads.retention import (
    RetentionActivities,
    RetentionKind,
    SweepPosition,
    SweepRequest,
    SweepResult,
)
from batchwright.database.database import Database
from batchwright.rules.stored_objects.retention import retention_cutoffs
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_GRACE = timedelta(hours=1)  # time between the expiry of a file or an upload and its deletion
_ORPHAN_AGE = timedelta(hours=48)  # minimum age of an object without a row, and vice versa

Sweep = Callable[[RetentionTurn, SweepPosition], Awaitable[SweepPosition | None]]
SWEEPS: Mapping[RetentionKind, Sweep] = {
    RetentionKind.FILES: expired.files,
    RetentionKind.UPLOADS: expired.uploads,
    RetentionKind.BATCHES: expired.batches,
    RetentionKind.METADATA: expired.metadata,
    RetentionKind.KEYS: expired.idempotency_keys,
    RetentionKind.CALLS: expired.calls,
    RetentionKind.WEBHOOKS: expired.webhooks,
    RetentionKind.AUDIT_LOG: expired.audit_log,
    RetentionKind.UNFINISHED: orphans.unfinished_objects,
    RetentionKind.ORPHANS: orphans.orphaned_objects,
    RetentionKind.LOST: orphans.files_without_object,
}


class Retention(RetentionActivities):
    def __init__(
        self,
        database: Database,
        storage: Storage,
        settings: Settings,
        metrics: Metrics,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self._database, self._storage = database, storage
        self._settings, self._metrics = settings, metrics
        self._turn_seconds = turn_seconds

    @activity.defn
    async def sweep(self, request: SweepRequest) -> SweepResult:
        """Delete old data of one kind for about ten seconds (one turn).

        Return how much was deleted, and the position at which the next turn continues; the position is None
        if no data of this kind is left. A turn can be repeated safely.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable: the service does not respond. The turn is retried from
                its beginning.
            ForeignStorage: the storage belongs to another database, or the object that names its database is
                missing. Nothing was deleted, and the turn is not retried.
        """
        turn = self._turn(request)
        try:
            async with heartbeating(), translated():
                position = await SWEEPS[request.kind](turn, request.position)
                if position is None:
                    await self._finish(request, turn)
        except Exception:
            self._metrics.retention_failures.labels(request.kind).inc()
            raise
        return SweepResult(deleted=turn.total, position=position)

    def _turn(self, request: SweepRequest) -> RetentionTurn:
        return RetentionTurn(
            kind=request.kind,
            database=self._database,
            storage=self._storage,
            cutoffs=retention_cutoffs(
                request.now,
                grace=_GRACE,
                metadata=timedelta(days=self._settings.metadata_retention_days),
                audit_log=timedelta(days=self._settings.audit_log_retention_days),
                orphans=_ORPHAN_AGE,
            ),
            now=request.now,
            metrics=self._metrics,
            dry_run=request.dry_run,
            seconds=self._turn_seconds,
        )

    async def _finish(self, request: SweepRequest, turn: RetentionTurn) -> None:
        """Log how much data of one kind was deleted. Call this after the last turn for this kind.

        If no deletion failed and this is no dry run, also record in the database that retention succeeded for
        this kind.
        """
        before = request.so_far
        data = {
            "kind": request.kind.value,
            "count": before.count + turn.count,
            "bytes": before.bytes + turn.bytes,
            "failures": before.failures + turn.failures,
            "dry_run": request.dry_run,
        }
        logger.info("retention kind done", extra=data)
        if not request.dry_run and not data["failures"]:
            await self._database.retention.record_success(request.kind, datetime.now(UTC))
