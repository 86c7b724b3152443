"""Retention: deletes what nobody may ask for any more, a bounded turn at a time (R14)."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities.errors import translated
from activities.heartbeat import beating
from activities.retain import due, litter
from activities.retain.turn import TURN_SECONDS, Turn
from batchwright.contracts.retention import Kind, Place, RetentionActivities, SweepRequest, SweepResult
from batchwright.database.base import DatabaseLike
from batchwright.rules.retention import horizons
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Sweep = Callable[[Turn, Place], Awaitable[Place | None]]
SWEEPS: Mapping[Kind, Sweep] = {
    Kind.FILES: due.files,
    Kind.UPLOADS: due.uploads,
    Kind.BATCHES: due.batches,
    Kind.METADATA: due.metadata,
    Kind.KEYS: due.idempotency_keys,
    Kind.UNFINISHED: litter.unfinished,
    Kind.ORPHANS: litter.orphans,
    Kind.LOST: litter.lost,
}


class Retention(RetentionActivities):
    def __init__(
        self,
        database: DatabaseLike,
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
        """One turn of one kind. Every deletion is safe to repeat, and so is the turn.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable: retried from where the turn began.
            ForeignStorage: not retried; nothing was compared and nothing deleted.
        """
        turn = self._turn(request)
        try:
            async with beating(), translated():
                place = await SWEEPS[request.kind](turn, request.place)
                if place is None:
                    await self._finish(request, turn)
        except Exception:
            self._metrics.retention_failures.labels(request.kind).inc()
            raise
        return SweepResult(gone=turn.gone, place=place)

    def _turn(self, request: SweepRequest) -> Turn:
        settings = self._settings
        return Turn(
            kind=request.kind,
            database=self._database,
            storage=self._storage,
            horizons=horizons(
                request.now,
                grace=timedelta(seconds=settings.retention_grace_seconds),
                metadata=timedelta(days=settings.metadata_retention_days),
                orphans=timedelta(hours=settings.orphan_hours),
            ),
            now=request.now,
            metrics=self._metrics,
            dry_run=request.dry_run,
            seconds=self._turn_seconds,
        )

    async def _finish(self, request: SweepRequest, turn: Turn) -> None:
        """Of the kind's last turn: it succeeded if all its turns did."""
        before = request.so_far
        data = {
            "kind": request.kind.value,
            "count": before.count + turn.count,
            "bytes": before.bytes + turn.bytes,
            "failures": before.failures + turn.failures,
            "dry_run": request.dry_run,
        }
        logger.info("retention done", extra=data)
        if not request.dry_run and not data["failures"]:
            await self._database.retention.note_success(request.kind, datetime.now(UTC))
