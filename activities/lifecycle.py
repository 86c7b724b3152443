"""Ends without files: cancelled before anything ran, or failed by the system (S0-45, S0-46)."""

from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities.ending import clean, count_end, count_skipped, tell_end, trace_end
from activities.errors import translated
from batchwright.contracts.lifecycle import EndRequest, LifecycleActivities
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics


class Lifecycle(LifecycleActivities):
    def __init__(
        self,
        database: DatabaseLike,
        metrics: Metrics,
        storage: Storage | None = None,
        keep_results: timedelta = timedelta(days=14),
    ) -> None:
        """`keep_results` is how long what had settled waits for a resumption, where no files were written."""
        self._keep = keep_results
        self._database = database
        self._storage = storage
        self._metrics = metrics

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        """End the row, made first if the API died before it could; a row that has ended stays as it is.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: retried.
        """
        order = request.order
        async with translated():
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal:
                count_skipped(self._metrics)
            else:
                at = datetime.now(UTC).replace(microsecond=0)
                row = await self._database.batches.end(
                    order.tenant,
                    order.batch_id,
                    request.status,
                    request.errors,
                    at,
                    at + self._keep if request.keep_results else None,
                )
                count_end(self._metrics, row, at)
                tell_end(row, at)
            trace_end(row)
            if self._storage is not None:
                keep = request.keep_results
                await clean(self._storage, self._database.files, order, keep_results=keep)
        return row.status
