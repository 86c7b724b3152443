"""The finalization activity: write the output and error file from the stored results, and end the batch."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities import memory
from batchwright.activities.batch_end.end_metrics import count_completion, count_missing_lines, count_skipped
from batchwright.activities.batch_end.leftover_objects import delete_scratch
from batchwright.activities.batch_end.log_and_trace import log_completion, record_span
from batchwright.activities.errors import failure, translated
from batchwright.activities.finalization.duplicate_results import DuplicateSettler
from batchwright.activities.finalization.missing_line_settler import MissingLineSettler
from batchwright.activities.finalization.missing_lines import MissingLines, find_missing
from batchwright.activities.finalization.output_file_writer import OutputFileWriter
from batchwright.activities.finalization.unanswered_calls import answer_calls
from batchwright.activities.heartbeat import heartbeating
from batchwright.activities.services.backend_job_cancellation import JobCanceller, RouterLookup, RunningJob
from batchwright.activities.stored_results.input_order_index import NO_USAGE, ResultIndex, SelectedResults
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.activities.stored_results.segment_reader import SegmentReader
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts, ModelUsage
from batchwright.contracts.temporal_payloads.finalization import (
    FinalizationActivities,
    FinalizeRequest,
    FinalizeResult,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.records import BatchOutcome, BatchRow
from batchwright.rules.ids import request_id
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.dead_letters import DeadLetter, parse_dead_letter
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.segment_format import SegmentDamaged
from batchwright.rules.results.token_usage import total_usage
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import Storage, StorageError
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)
_MAX_DEAD_LETTERS = 10_000  # maximum listed per batch; the error file contains all failed lines


class _SettledLines(NamedTuple):
    """The result of every line of the batch, and counts of the lines by model."""

    selected: SelectedResults
    models: list[ModelCounts]
    missing: Mapping[str, int]  # by model: lines that finalization settled with an error
    failed_copies: Mapping[str, int]  # by model: number of duplicates whose original failed
    errors: list[ErrorCount]  # lines that failed after ingestion, by code and model
    jobs: list[RunningJob]  # jobs of lines that finalization settled with an error


class Finalization(FinalizationActivities):
    def __init__(
        self,
        database: Database,
        storage: Storage,
        settings: Settings,
        metrics: Metrics,
        routers: RouterLookup,
    ) -> None:
        self._jobs = JobCanceller(routers, metrics)
        self._database = database
        self._storage = storage
        self._settings = settings
        self._metrics = metrics

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        """Write the batch's output and error file, end the batch, and return its final counts.

        If the deadline has passed, but every line had a result in time, the batch ends as completed.

        Several attempts may run at the same time. All of them make the same files with the same ids, and
        return the same result. One database transaction decides which attempt ends the batch. If the batch
        has already ended, it keeps its status. If the batch has ended but its files were not written yet,
        they are added to its database row.

        At the end, the batch's intermediate objects are deleted. They are kept if the batch ended without
        files, so that another batch can resume it.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable: the service does not respond; retried.
            CancelAccepted: the batch was cancelled before it ended. The activity is retried until the
                workflow handles the cancel and stops the activity.
            PlanDamaged, ResultsDamaged, InputVanished: stored objects are damaged or missing. The activity is
                not retried, and it does not end the batch.
        """
        order = request.order
        async with heartbeating(), translated():
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal and not row.files_pending:
                count_skipped(self._metrics)
            else:
                row = await self._end(request, row)
            record_span(row)
            keep = row.results_kept_until is not None
            await delete_scratch(self._storage, self._database.files, order, keep_results=keep)
        await asyncio.to_thread(memory.release_free_pages, memory.glibc_malloc(), request.total)
        failed = Counter[str]()
        for error in row.errors_summary:
            failed[error.code] += error.count
        return FinalizeResult(
            status=row.status,
            completed=row.completed,
            failed=row.failed,
            usage=row.usage,
            failed_by_code=dict(failed.most_common()),
        )

    async def _end(self, request: FinalizeRequest, before: BatchRow) -> BatchRow:
        """Finalize the batch, whose database row is `before`, and return the batch's new row.

        If this attempt fails, and another attempt has already finalized the batch, return the row that the
        other attempt wrote.
        """
        order = request.order
        started = time.monotonic()
        try:
            row = await self._finalize(request, before)
        except (StorageError, PlanDamaged, SegmentDamaged, ApplicationError):
            row = await self._database.batches.get(order.tenant, order.batch_id)
            if row is None or not row.status.is_terminal or row.files_pending:
                raise
            return row
        self._metrics.finalize_seconds.observe(time.monotonic() - started)
        return row

    async def _finalize(self, request: FinalizeRequest, before: BatchRow) -> BatchRow:
        order, status = request.order, request.status
        if status is BatchStatus.COMPLETED:
            await self._database.batches.start_finalizing(order.tenant, order.batch_id, _now())
        with ResultSpool(self._settings.spool_dir) as spool, ResultIndex(spool) as index:
            settled = await self._settle_all(request, spool, index)
            selected = settled.selected
            if _is_completed_in_time(request, before, settled):
                status = BatchStatus.COMPLETED
                await self._database.batches.start_finalizing(order.tenant, order.batch_id, _now())
            files = OutputFileWriter(self._storage, self._settings, order, status)
            try:
                output, error = await files.write(spool, index, selected, _now())
                dead_letters = await spool.run_in_thread(self._dead_letters, order, index, selected)
                if order.policy.rolling is not None:
                    await answer_calls(self._database.calls, order, spool, index, selected)
            except BaseException:
                await files.discard()
                raise
            outcome = BatchOutcome(
                status=status,
                completed=len(selected.output),
                failed=len(selected.error),
                usage=selected.usage,
                model_usage=_usage_of_models(request, selected),
                models=settled.models,
                errors_summary=ErrorTally([*before.ingestion_errors, *settled.errors]).counts(),
                output=output,
                error=error,
                errors=request.errors,
                dead_letters=dead_letters,
            )
        # Before the batch ends, because an attempt that finds an ended batch does not know its jobs.
        await self._jobs.cancel(order, [share.model for share in request.models], settled.jobs)
        try:
            return await self._finish(request, outcome, settled)
        except ApplicationError:  # a cancel came first, so no row names the files
            await files.discard()
            raise

    def _dead_letters(
        self, order: BatchOrder, index: ResultIndex, selected: SelectedResults
    ) -> list[DeadLetter]:
        return [
            parse_dead_letter(payload, id=request_id(order.batch_id, offset), offset=offset)
            for offset, payload in islice(index.dead_letters(selected), _MAX_DEAD_LETTERS)
        ]

    async def _finish(
        self, request: FinalizeRequest, outcome: BatchOutcome, settled: _SettledLines
    ) -> BatchRow:
        order, at = request.order, _now()
        row, ended = await self._database.batch_ends.finish(order.tenant, order.batch_id, outcome, at)
        if request.status is BatchStatus.EXPIRED and not row.status.is_terminal:
            # A cancel came first, but after the deadline, so the workflow no longer handles it.
            expired = outcome.model_copy(update={"status": BatchStatus.EXPIRED})
            row, ended = await self._database.batch_ends.finish(order.tenant, order.batch_id, expired, at)
        added = False
        if row.files_pending:
            row, added = await self._database.batch_ends.add_files(order.tenant, order.batch_id, outcome)
        if not row.status.is_terminal:
            raise ApplicationError(
                "A cancel was accepted before the batch was completed.",
                type=Failure.CANCEL_ACCEPTED,
                category=ApplicationErrorCategory.BENIGN,
            )
        if ended:
            count_completion(self._metrics, row, at)
            log_completion(row, at)
        if added:
            _log.info("pending files written", extra={"status": row.status.value})
        if ended or added:  # only the attempt that won counts the lines
            for share in request.models:
                self._metrics.duplicates.labels(share.model).inc(share.duplicates)
            count_missing_lines(self._metrics, request.missing_line_code, settled.missing)
            for model, lines in settled.failed_copies.items():
                self._metrics.request_errors.labels(model).inc(lines)
        return row

    async def _settle_all(
        self, request: FinalizeRequest, spool: ResultSpool, index: ResultIndex
    ) -> _SettledLines:
        """Select or create exactly one result for every line of the batch, and count the lines of each model.

        Lines without a result get an error. A duplicate line gets a copy of its original's result.

        Raises:
            ApplicationError (RESULTS_DAMAGED): the results do not match the lines that ingestion planned.
        """
        order = request.order
        reader = SegmentReader(self._storage, spool, index)
        from_ingestion = await reader.read_prefix(object_keys.unserved_root(request.ingest_prefix))
        if order.origin is not None:
            from_ingestion += await reader.read_prefix(object_keys.resumed_root(request.ingest_prefix))
        await reader.read_live_prefix(object_keys.results_root(order.tenant, order.batch_id))
        selected = await spool.run_in_thread(index.select)
        missing = await find_missing(self._storage, spool, request, index, selected)
        _check_counts(request, selected, missing, from_ingestion)
        errors = await spool.run_in_thread(_errors_of_slices, request, index, selected)
        jobs: list[RunningJob] = []
        if missing:
            settler = MissingLineSettler(self._storage, spool, request, missing, index)
            errors += await self._settle_missing(order, settler)
            jobs = list(settler.running_jobs.values())
            selected = await spool.run_in_thread(index.select)
        models, failed_copies = missing.models, dict[str, int]()
        if _duplicate_count(request):
            copier = DuplicateSettler(self._storage, request, spool, index, selected)
            models = await copier.settle(models)
            errors += copier.errors.counts()
            failed_copies = {
                after.model: after.failed - before.failed
                for before, after in zip(missing.models, models, strict=True)
            }
            selected = await spool.run_in_thread(index.select)
        if selected.lines != request.total:
            raise failure(
                Failure.RESULTS_DAMAGED,
                f"Batch {order.batch_id!r} has {request.total} lines, its files would have {selected.lines}.",
            )
        return _SettledLines(selected, models, missing.by_model, failed_copies, errors, jobs)

    async def _settle_missing(self, order: BatchOrder, settler: MissingLineSettler) -> list[ErrorCount]:
        """Give every line without a result an error as its result. Return the number of errors per model."""
        row = await self._database.files.get(order.tenant, order.input_file_id)
        async with translated(Failure.INPUT_VANISHED):
            return await settler.settle(row.storage_key if row else None)


def _errors_of_slices(
    request: FinalizeRequest, index: ResultIndex, selected: SelectedResults
) -> list[ErrorCount]:
    """Count the lines that workers settled with an error while slices ran, by error code and model.

    The result of a line is in a segment, a stored object with many results. The segment's storage key shows
    the model of the line.
    """
    order, tally = request.order, ErrorTally()
    root, models = object_keys.results_root(order.tenant, order.batch_id), dict[str, str]()
    for share in request.models:
        models[share.safe_model] = share.model
    for key, line in index.lines_by_segment(selected.error):
        if key.startswith(root):
            tally.add(line_error(line, models.get(key[len(root) :].partition("/")[0])))
    return tally.counts()


def _usage_of_models(request: FinalizeRequest, selected: SelectedResults) -> list[ModelUsage]:
    """Count the lines that succeeded while slices ran, and their tokens, for each model.

    Results that were copied from another batch are not counted. Their segments (stored objects with results)
    belong to no model.
    """
    root = object_keys.results_root(request.order.tenant, request.order.batch_id)
    return [
        ModelUsage(model=share.model, requests=used.requests, **total_usage([used.tokens]).model_dump())
        for share in request.models
        for used in [selected.usages.get(root + share.safe_model, NO_USAGE)]
    ]


def _check_counts(
    request: FinalizeRequest, selected: SelectedResults, missing: MissingLines, from_ingestion: int
) -> None:
    """Check that the results match the lines of the batch, before lines without a result get an error.

    Every result must belong to a line, and every line without a result must be in `missing`. Duplicate lines
    are not checked.

    Args:
        from_ingestion: number of results that ingestion wrote.

    Raises:
        ApplicationError (RESULTS_DAMAGED): the numbers do not match.
    """
    total = request.total - _duplicate_count(request)
    if selected.lines == missing.found + from_ingestion and selected.lines + len(missing) == total:
        return
    raise failure(
        Failure.RESULTS_DAMAGED,
        f"Batch {request.order.batch_id!r} has {total} lines; {selected.lines} have a result "
        f"({missing.found} from slices, {from_ingestion} from ingestion) and {len(missing)} have none.",
    )


def _is_completed_in_time(request: FinalizeRequest, before: BatchRow, settled: _SettledLines) -> bool:
    """Return True if the batch counts as completed, although the workflow reports a passed deadline.

    If each line had a result in time, the batch counts as completed. The workflow does not know this if a
    worker stored the last result of a slice and then crashed. If the batch has already ended, or was
    cancelled, the result is False.
    """
    return (
        request.missing_line_code is LineCode.BATCH_EXPIRED
        and not any(settled.missing.values())
        and not before.status.is_terminal
        and before.cancel_requested_at is None
    )


def _duplicate_count(request: FinalizeRequest) -> int:
    return sum(share.duplicates for share in request.models)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
