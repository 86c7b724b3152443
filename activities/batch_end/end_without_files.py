"""Two activities: insert the missing database row of a batch, and end a batch without writing its files."""

import logging
from datetime import UTC, datetime, timedelta

from temporalio import activity

from batchwright.activities.batch_end.end_metrics import count_completion, count_skipped
from batchwright.activities.batch_end.leftover_objects import delete_scratch
from batchwright.activities.batch_end.log_and_trace import log_completion, record_span
from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.finalization import EndRequest, LifecycleActivities
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.records import BatchRow
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_FILES_MARGIN = timedelta(hours=1)


class Lifecycle(LifecycleActivities):
    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        storage: Storage,
        keep_results: timedelta = timedelta(days=14),
    ) -> None:
        """Create the implementation of the two activities `insert_row` and `end`.

        `insert_row` inserts the missing database row of a batch. `end` ends a batch without writing its
        output files.

        Args:
            storage: where `end` deletes intermediate objects of the batch.
            keep_results: how long the results of a batch that ended without output files are kept. Until
                then, another batch can resume this batch (reuse its results).
        """
        self._keep = keep_results
        self._database = database
        self._storage = storage
        self._metrics = metrics

    @activity.defn
    async def insert_row(self, order: BatchOrder) -> None:
        """Insert the batch's database row, if it is missing because the API could not insert it.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        async with heartbeating(), translated():
            await self._database.batches.upsert(order)

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        """End a batch without writing its output files: set its final status, and return the status.

        If the batch's database row is missing because the API crashed, insert the row first. If the batch has
        already ended, keep its status.

        - If `request.files_pending` is True, another activity writes the files later. Until then, the batch's
          row says that the files are pending.
        - If `request.files_pending` is False, no files will be written, and the row no longer says that the
          files are pending. The batch's intermediate objects are deleted, unless `request.keep_results` is
          True. If the objects are kept, a new batch can resume this batch and use the stored results.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        order = request.order
        async with heartbeating(), translated():
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal and not row.files_pending:
                count_skipped(self._metrics)
            elif not row.status.is_terminal:
                row = await self._end(request)
            elif not request.files_pending:
                row = await self._give_up_files(request)
            if request.files_pending:
                return row.status  # the finalization that follows records the span and deletes the objects
            record_span(row)
            keep = request.keep_results
            await delete_scratch(self._storage, self._database.files, order, keep_results=keep)
        return row.status

    async def _end(self, request: EndRequest) -> BatchRow:
        order, at = request.order, _now()
        # Longer than ingestion and finalization may take together.
        files_timeout = 2 * timedelta(seconds=order.policy.finalize_patience_seconds) + _FILES_MARGIN
        row, moved = await self._database.batch_ends.end_without_files(
            order.tenant,
            order.batch_id,
            request.status,
            request.errors,
            at,
            at + self._keep if request.keep_results else None,
            at + files_timeout if request.files_pending else None,
        )
        if moved:
            count_completion(self._metrics, row, at)
            log_completion(row, at)
        return row

    async def _give_up_files(self, request: EndRequest) -> BatchRow:
        order = request.order
        keep_until = _now() + self._keep if request.keep_results else None
        row, moved = await self._database.batch_ends.abandon_files(
            order.tenant, order.batch_id, request.errors, keep_until=keep_until
        )
        if moved:
            reason = request.errors[-1].message if request.errors else ""
            _log.error("pending files given up", extra={"reason": reason})
        return row


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
