"""The ingestion activity: validate the input file and write its plans, shards and slices, or fail the batch.

A plan lists a model's lines in the order of sending. A shard contains these lines in the same order. A slice
is a range of a plan and its shard, which a worker sends.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities import memory
from batchwright.activities.batch_end.end_metrics import count_skipped, size_bucket
from batchwright.activities.batch_end.log_and_trace import record_span
from batchwright.activities.concurrency import run_both
from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.activities.ingestion.input_file import InputCopy, write_calls
from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.activities.ingestion.publisher import Publisher, settled_counts
from batchwright.activities.ingestion.resumption import SourceBatchGone, resumed_results
from batchwright.activities.ingestion.scanner import IngestionContext, Scanner
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.activities.ingestion.start_forecast import check_window
from batchwright.activities.ingestion.transitions import BatchTransitions, result_of_ended
from batchwright.activities.services.model_access import ModelAccess
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities, IngestResult
from batchwright.contracts.terms import OverQuota, ValidationError
from batchwright.database.database import Database
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.deadline import Deadline
from batchwright.rules.input.validation_errors import (
    file_not_found,
    file_too_large,
    price_problem,
    quota_exceeded,
)
from batchwright.rules.planning.plan_format import ENTRY_BYTES
from batchwright.rules.results.error_tally import ErrorTally
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.tenants.quotas import EnqueuedWork, QuotaExcess
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage, StorageError
from batchwright.storage.referenced_input import InputRefused
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1024 * 1024
_LOGGED_MODELS = 10
_QUOTA_RETRY_DELAY, _LONGEST_QUOTA_RETRY_DELAY = timedelta(seconds=2), timedelta(seconds=20)
# The workflow's clock may differ from this clock by so much. The margin ensures that a deadline which has
# passed here has also passed for the workflow.
_CLOCK_SKEW = timedelta(seconds=1)
_DISCARD_SECONDS = 5.0  # the workflow waits 10 s for a cancelled step


class Ingestion(IngestionActivities):
    def __init__(
        self,
        database: Database,
        storage: Storage,
        models: ServedModels,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._storage = storage
        self._models = models
        self._settings = settings
        self._metrics = metrics

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        """Validate the input of a batch, put its lines in the order of sending, and divide them into slices.

        Return the counts of lines and slices, and the prefix of the storage keys of the written objects. The
        batch gets one of these statuses:

        - `failed` if the input is invalid or the batch is refused.
        - `cancelled` if the lines are calls (single requests of clients), and all calls were cancelled.
        - `in_progress` in all other cases.

        If the deadline has passed, no line will be sent. The order of the lines is still written, because
        finalization needs it to write the files.

        Each attempt does the whole work again, and writes its objects under its own prefix of storage keys.
        Only the objects under the returned prefix are used.

        Raises (ApplicationError, by type), all retried:
            StorageUnavailable, DatabaseUnavailable: the service does not respond, or the input cannot be
                read.
            Deferred: it is not known which models exist, because no backend has reported its models yet.
            OverQuota: the batch exceeds the tenant's quota now and has to wait. This is raised only if the
                tenant's batches are set to wait. If they are not, the batch fails.
        """
        started = time.monotonic()
        async with heartbeating(), translated(Failure.STORAGE_UNAVAILABLE):
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal and not row.files_pending:
                count_skipped(self._metrics)
                record_span(row)
                return result_of_ended(row)
            if activity.info().attempt == 1:
                waited = (datetime.now(UTC) - order.starts_at).total_seconds()
                self._metrics.queue_wait_seconds.observe(max(waited, 0.0))
            result = await self._ingest(order, row)
        await asyncio.to_thread(memory.release_free_pages, memory.glibc_malloc(), result.total)
        seconds = time.monotonic() - started
        if not result.failed:
            _log_ingested(result, seconds)
        self._metrics.ingest_seconds.labels(size_bucket(result.total)).observe(seconds)
        return result

    async def _ingest(self, order: BatchOrder, row: BatchRow) -> IngestResult:
        transitions = BatchTransitions(order, self._database, self._metrics)
        file = await self._database.files.get(order.tenant, order.input_file_id)
        if file is None and (rolling := order.policy.rolling) is not None:
            file = await write_calls(self._database, self._storage, order, rolling.group)
            if file is None:
                return await transitions.cancel()
        if file is None and order.input_location is not None:
            copy = InputCopy(order, self._database, self._storage, self._settings)
            try:
                file = await copy.make(order.input_location)
            except InputRefused as refused:
                return await transitions.fail([refused.error])
        if file is None:
            return await transitions.fail([file_not_found(order.input_file_id, order.tenant)])
        max_bytes = self._settings.max_batch_file_bytes
        # The sizes of message batches and of calls were checked when they were created.
        if file.bytes > max_bytes and not order.policy.lines_fail_alone:
            return await transitions.fail([file_too_large(file.bytes, max_bytes)])
        deadline = Deadline.of(order.deadline + _CLOCK_SKEW)
        served = await self._models.names(self._settings, deadline)
        quotas = await self._database.quotas.get(order.tenant)
        access = ModelAccess(served, quotas, self._models.current.accepts_unlisted)
        prices = row.prices if row.in_progress_at else None
        context = IngestionContext(order, self._settings, access, deadline, row.start_forecast, prices)
        await self._retry_reservation(context)
        try:
            with InputSpool(self._settings.spool_dir) as spool:
                async with resumed_results(order, self._database, self._storage, self._settings) as resumed:
                    scanner = Scanner(context, self._models.current.canonical, resumed, spool.new_bytes)
                    return await self._plan(context, transitions, file, scanner, spool)
        except SourceBatchGone as gone:
            return await transitions.fail([ValidationError(code="invalid_request", message=str(gone))])

    async def _plan(
        self,
        context: IngestionContext,
        transitions: BatchTransitions,
        file: FileRow,
        scanner: Scanner,
        spool: InputSpool,
    ) -> IngestResult:
        order = context.order
        try:
            await self._scan(context.deadline, file, scanner, spool)
        except ObjectMissing:
            return await transitions.fail([file_not_found(file.id, order.tenant)])
        if found := scanner.errors.count:
            return await transitions.fail(scanner.errors.as_list(), found, scanner.total)
        # An earlier attempt may have stored the prices with which the batch began.
        prices = self._models.prices(scanner.models) if context.prices is None else context.prices
        if unpriced := price_problem(order, list(scanner.models), prices):
            return await transitions.fail([unpriced], total=scanner.total)
        if not scanner.deadline_passed and (excess := await self._reserve(context, scanner.enqueued)):
            return await transitions.fail([quota_exceeded(excess)], total=scanner.total)
        if refusal := await check_window(self._database, self._metrics, context, scanner):
            return await transitions.fail([refusal], total=scanner.total)
        prefix = object_keys.ingest_prefix(order.tenant, order.batch_id, uuid4().hex)
        settled = settled_counts(scanner)
        publisher = Publisher(context, self._storage, self._models.rates, prefix, spool)
        copied = 0 if scanner.deadline_passed else file.bytes
        estimated_bytes = copied + scanner.total * ENTRY_BYTES
        await self._database.batches.add_attempt(order.tenant, order.batch_id, prefix, estimated_bytes)
        try:
            shares = await publisher.publish(scanner)
            await self._store_custom_ids(order, scanner, spool)
            resumed = scanner.resumed.errors.counts() if scanner.resumed else []
            errors = ErrorTally([*publisher.errors.counts(), *resumed]).counts()
            priced = [share.model_copy(update={"prices": prices.get(share.model)}) for share in shares]
            return await transitions.start(prefix, priced, settled, scanner.unserved.codes, errors)
        except BaseException:
            await self._discard(order, prefix)
            raise

    async def _store_custom_ids(self, order: BatchOrder, scanner: Scanner, spool: InputSpool) -> None:
        """Store an index of the lines' custom ids in the database, so that clients can search for a line.

        The index is stored in several parts. If an earlier attempt has stored a part, it is not changed.
        """
        if scanner.custom_ids is None:
            return
        parts, number = scanner.custom_ids.parts(), 0
        while (part := await spool.run_in_thread(next, parts, None)) is not None:
            await self._database.custom_ids.store(order.tenant, order.batch_id, number, part)
            number += 1

    async def _discard(self, order: BatchOrder, prefix: str) -> None:
        """Delete the objects that this attempt wrote under `prefix` before it failed.

        Errors are only logged, because retention (the regular deletion of old data) deletes the objects
        later.
        """
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                await self._storage.delete_prefix(f"{prefix}/")
                await self._database.batches.remove_attempt(order.tenant, order.batch_id, prefix)
        except (StorageError, DatabaseUnavailable, TimeoutError) as error:
            _log.warning("objects of a failed ingestion not deleted", extra={"error": str(error)})

    async def _retry_reservation(self, context: IngestionContext) -> None:
        """If an earlier attempt exceeded the tenant's quota, try again to reserve the quota.

        Call this before the input is read again. If no earlier attempt has tried to reserve the quota, or if
        the batch's deadline has passed, do nothing.

        Raises:
            ApplicationError (OVER_QUOTA): the quota is still exceeded, so the batch has to wait.
        """
        order = context.order
        work = await self._database.quotas.requested(order.tenant, order.batch_id)
        if work is not None and not context.deadline.passed(time.time()):
            await self._reserve(context, work)

    async def _reserve(self, context: IngestionContext, work: EnqueuedWork) -> QuotaExcess | None:
        """Reserve the tenant's quota for the lines and tokens of this batch, before anything is written.

        Return None if the quota is reserved. If the batch must fail, return which quota it would exceed, and
        by how much.

        Raises:
            ApplicationError (OVER_QUOTA): the batch must wait until the tenant's other batches use less of
                the quota; retried. A batch waits only if its tenant is configured to wait, and if the batch
                alone does not exceed the quota.
        """
        order, quotas = context.order, context.access.quotas
        limits, waits = quotas.limits(self._settings.quotas), quotas.over_quota is OverQuota.WAIT
        excess = await self._database.quotas.reserve(order.tenant, order.batch_id, work, limits, waits=waits)
        if excess is not None and waits and excess.can_wait:
            attempts = activity.info().attempt
            raise ApplicationError(
                excess.waiting_reason,
                type=Failure.OVER_QUOTA,
                category=ApplicationErrorCategory.BENIGN,
                next_retry_delay=min(attempts * _QUOTA_RETRY_DELAY, _LONGEST_QUOTA_RETRY_DELAY),
            )
        if excess is not None:
            tenant = self._metrics.tenants(order.tenant)
            self._metrics.quota_refusals.labels(tenant, excess.quota.value).inc()
        return excess

    async def _scan(self, deadline: Deadline, file: FileRow, scanner: Scanner, spool: InputSpool) -> None:
        """Validate the lines of the input, and copy the input to `spool`, a file on the local disk.

        Each piece is validated while the next piece is read. If storage keeps the input as a file on the same
        disk as the spool, this file is used and not copied.
        """
        local_file = await self._storage.open_file(file.storage_key)
        copy = local_file is None or not spool.try_to_use_file(local_file)
        if copy:
            spool.require(file.bytes)
        reading = self._storage.read(file.storage_key)
        piece = await _next_piece(reading)
        while piece:
            scanner.deadline_passed = deadline.passed(time.time())
            scanning = _scan_piece(piece, scanner, spool, copy=copy)
            piece, _ = await run_both(_next_piece(reading), scanning)
        await spool.run_in_thread(scanner.finish)


async def _scan_piece(piece: bytes, scanner: Scanner, spool: InputSpool, *, copy: bool) -> None:
    scanning = spool.run_in_thread(scanner.feed, piece)
    if copy:
        await run_both(scanning, spool.run_in_thread(spool.write, piece))
    else:
        await scanning


async def _next_piece(reading: AsyncIterator[bytes]) -> bytes:
    """Read the next piece of the input, about 1 MiB. Return no bytes at the end of the input."""
    pieces: list[bytes] = []
    size = 0
    while size < _PIECE_BYTES and (piece := await anext(reading, None)) is not None:
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _log_ingested(result: IngestResult, seconds: float) -> None:
    data = {
        "lines": result.total,
        "slices": sum(share.slices for share in result.models),
        "unserved": result.unserved,
        "resumed": result.resumed,
        "duplicates": sum(share.duplicates for share in result.models),
        "models": ",".join(share.model for share in result.models[:_LOGGED_MODELS]),
        "seconds": seconds,
    }
    _log.info("batch ingested", extra=data)
