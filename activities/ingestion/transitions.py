"""Record in the database how a batch's ingestion ended: the batch is started, failed or cancelled."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from temporalio import activity

from batchwright.activities.batch_end.end_metrics import count_invalid_input, count_unserved
from batchwright.activities.batch_end.log_and_trace import record_span
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.database import Database
from batchwright.database.records import BatchRow
from batchwright.telemetry import tracing
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)


class BatchTransitions:
    """The changes of one batch's status at the end of its ingestion.

    Each method returns the activity's result. An earlier attempt may have ended the batch already. The batch
    then keeps its status, and the result describes this status.
    """

    def __init__(self, order: BatchOrder, database: Database, metrics: Metrics) -> None:
        self._order = order
        self._database = database
        self._metrics = metrics

    async def start(
        self,
        prefix: str,
        shares: list[ModelShare],
        settled: dict[str, ModelCounts],
        codes: Mapping[LineCode, int],
        errors: list[ErrorCount],
    ) -> IngestResult:
        """Set the batch's status to `in_progress`, store the line counts, and return the activity's result.

        Args:
            prefix: beginning of the storage keys of the objects that this attempt has written.
            shares: for each model, its prices and the numbers of planned lines, duplicates and slices.
            settled: for each model, counts of the lines that already have a result.
            codes: for each error code, the number of lines that failed during ingestion.
            errors: for each error code and model, the number of lines that failed during ingestion, plus the
                failures that were copied from a resumed batch.
        """
        order = self._order
        settled_lines = sum(count.lines for count in settled.values())
        total = settled_lines + sum(share.lines + share.duplicates for share in shares)
        completed = sum(count.completed for count in settled.values())
        models = [_with_settled(share, settled.pop(share.model, None)) for share in shares]
        started = await self._database.batches.start(
            order.tenant,
            order.batch_id,
            total=total,
            models=[*models, *settled.values()],
            at=_now(),
            unserved=settled_lines - completed,
            completed=completed,
            began_at=_began_at(),
            errors=errors,
            prices={share.model: share.prices for share in shares if share.prices is not None},
        )
        if started:
            count_unserved(self._metrics, codes)
        unserved = sum(codes.values())
        return IngestResult(
            ingest_prefix=prefix,
            models=shares,
            total=total,
            unserved=unserved,
            resumed=settled_lines - unserved,
            deadline_passed=any(not share.slices for share in shares),
        )

    async def cancel(self) -> IngestResult:
        """End a rolling batch, because all its calls were cancelled. Return the activity's result.

        A call is a single request that runs as a line of a rolling batch.
        """
        row, _ = await self._database.batch_ends.end_without_files(
            self._order.tenant, self._order.batch_id, BatchStatus.CANCELLED, [], _now()
        )
        return result_of_ended(row)

    async def fail(self, errors: list[ValidationError], found: int = 1, total: int = 0) -> IngestResult:
        """Fail the batch because of `errors`, and return the activity's result.

        If the batch has already ended, it keeps its status, and the result describes this status.

        Args:
            errors: the errors that the batch's row shows, at least one.
            found: number of errors that were found, including those that are not shown.
            total: number of lines of the input; `0` if the input was not read.
        """
        order = self._order
        moved = await self._database.batch_ends.fail_validation(
            order.tenant, order.batch_id, errors=errors, total=total, at=_now()
        )
        if moved:
            count_invalid_input(self._metrics, order, total, _began_at(), _now())
            # Messages may quote the input, so they are stored only in the batch and not logged.
            data = {"errors": found, "code": errors[0].code, "line": errors[0].line}
            _log.warning("batch failed validation", extra=data)
        else:
            # An earlier attempt may have started the batch with other settings. `end` ends any live status.
            status = BatchStatus.FAILED
            row, _ = await self._database.batch_ends.end_without_files(
                order.tenant, order.batch_id, status, errors, _now()
            )
            if row.files_pending:  # the batch expired meanwhile and keeps that status
                await self._database.batch_ends.abandon_files(
                    order.tenant, order.batch_id, errors, total=total
                )
            elif row.status is not status:
                return result_of_ended(row)
        row = await self._database.batches.get(order.tenant, order.batch_id) if tracing.spans() else None
        if row is not None:
            record_span(row)
        return IngestResult(failed=True, total=total, error_count=found)


def result_of_ended(row: BatchRow) -> IngestResult:
    """Return the activity's result for a batch that has ended before ingestion, for example by a cancel."""
    failed = row.status is BatchStatus.FAILED
    return IngestResult(failed=failed, total=row.total, error_count=len(row.errors))


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _began_at() -> datetime:
    """Return when this activity began.

    In the first attempt, return the time when this attempt started. A later attempt does not know when the
    first attempt started, so return the time when the activity was scheduled.
    """
    info = activity.info()
    return info.started_time if info.attempt == 1 else info.scheduled_time


def _with_settled(share: ModelShare, settled: ModelCounts | None) -> ModelCounts:
    """Add up the counts of all lines of a model: lines to send, duplicates, and lines that have a result.

    Args:
        share: numbers of lines to send and of duplicates.
        settled: counts of the lines that already have a result; None if there are none.
    """
    lines = share.lines + share.duplicates
    if settled is None:
        return ModelCounts(model=share.model, lines=lines, duplicates=share.duplicates)
    return settled.model_copy(update={"lines": lines + settled.lines, "duplicates": share.duplicates})
