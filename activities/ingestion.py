"""Ingestion: from the input file to plans, shards and slices, or to a failed validation."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities import memory
from activities.ending import count_refused, count_skipped, size_bucket, trace_end
from activities.errors import translated
from activities.heartbeat import beating
from activities.ingest.access import Access
from activities.ingest.adoption import Adoption
from activities.ingest.origin import OriginGone, adoption_of
from activities.ingest.publish import Publisher, settled_counts
from activities.ingest.scan import Scanner
from activities.ingest.spool import Spool
from activities.ingest.twins import Twins
from activities.ingest.window import Window
from activities.side_by_side import side_by_side
from activities.slices.pace import NoRates, Rates
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import Failure
from batchwright.contracts.ingestion import IngestionActivities, IngestResult, ModelShare
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import BatchRow, FileRow, ModelCount
from batchwright.inference.backends import CurrentModels
from batchwright.rules import keys
from batchwright.rules.findings import large_file, missing_file, over_quota
from batchwright.rules.quotas import Enqueued, Excess
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage
from batchwright.telemetry import tracing
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_PIECE_BYTES = 1024 * 1024
_TOLD_MODELS = 10
_ASK_AGAIN = timedelta(seconds=5)


class Ingestion(IngestionActivities):
    def __init__(
        self,
        database: DatabaseLike,
        storage: Storage,
        models: CurrentModels,
        settings: Settings,
        metrics: Metrics,
        rates: Rates | None = None,
    ) -> None:
        """`rates` in effect decide how long slices are, and on which queue they go; none: no limits."""
        self._rates = rates or NoRates()
        self._database = database
        self._storage = storage
        self._models = models
        self._settings = settings
        self._metrics = metrics

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        """Validate the input and plan it; the row moves to in_progress or failed.

        Where the window is over it is validated all the same, but planned for its files only.

        Every attempt writes below a prefix of its own, and its result is the commit. An attempt that finds
        the row moved on by an earlier one, whose result was lost, does its work all the same.

        Raises (ApplicationError, by type), all retried:
            StorageUnavailable, DatabaseUnavailable.
            Deferred: not one backend has told yet which models it serves.
        """
        started = time.monotonic()
        async with beating(), translated(Failure.STORAGE_UNAVAILABLE):
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal:
                count_skipped(self._metrics)
                trace_end(row)
                return _as_it_ended(row)
            self._count_wait(order)
            result = await self._ingest(order)
        await asyncio.to_thread(memory.give_back, memory.of_this_process(), result.total)
        seconds = time.monotonic() - started
        if not result.failed:
            _tell(result, seconds)
        self._metrics.ingest_seconds.labels(size_bucket(result.total)).observe(seconds)
        return result

    def _count_wait(self, order: BatchOrder) -> None:
        if activity.info().attempt == 1:
            waited = (datetime.now(UTC) - order.created_at).total_seconds()
            self._metrics.queue_wait_seconds.observe(max(waited, 0.0))

    async def _ingest(self, order: BatchOrder) -> IngestResult:
        file = await self._database.files.get(order.tenant, order.input_file_id)
        if file is None:
            return await self._fail(order, [missing_file(order.input_file_id, order.tenant)])
        most = self._settings.max_batch_file_bytes
        if file.bytes > most:
            return await self._fail(order, [large_file(file.bytes, most)])
        window = Window(order)
        access = Access(await self._served(window), await self._database.quotas.get(order.tenant))
        try:
            with Spool(self._settings.spool_dir) as spool:
                async with adoption_of(order, self._database, self._storage, self._settings) as adoption:
                    scanner = self._scanner(order, access, adoption)
                    return await self._plan(order, file, access, scanner, spool, window)
        except OriginGone as gone:
            return await self._fail(order, [ValidationError(code="invalid_request", message=str(gone))])

    def _scanner(self, order: BatchOrder, access: Access, adoption: Adoption | None) -> Scanner:
        policy = order.policy
        return Scanner(
            order.endpoint,
            policy.profile,
            self._settings,
            access,
            adoption,
            self._models.canonical,
            Twins() if policy.deduplicate else None,
        )

    async def _served(self, window: Window) -> frozenset[str] | None:
        """No line is refused because all backends are out of reach just then, or because its model is new.

        None: no backend has told, and there is no time to wait for one.
        """
        served, settings = await self._models.served_now(), self._settings
        if served or not (settings.backends or settings.registry):
            return served
        if window.is_over:
            return None
        raise ApplicationError(
            "No backend has told yet which models it serves.",
            type=Failure.DEFERRED,
            category=ApplicationErrorCategory.BENIGN,
            next_retry_delay=_ASK_AGAIN,
        )

    async def _plan(
        self, order: BatchOrder, file: FileRow, access: Access, scanner: Scanner, spool: Spool, window: Window
    ) -> IngestResult:
        try:
            await self._scan(file, scanner, spool, window)
        except ObjectMissing:
            return await self._fail(order, [missing_file(file.id, order.tenant)])
        if found := scanner.findings.count:
            return await self._fail(order, scanner.findings.listed(), found, scanner.total)
        if not scanner.closed and (excess := await self._reserve(order, scanner.enqueued, access)):
            return await self._fail(order, [over_quota(excess)], total=scanner.total)
        prefix = keys.ingest_prefix(order.tenant, order.batch_id, uuid4().hex)
        settled = settled_counts(scanner)
        publisher = Publisher(
            self._storage, self._settings, order, prefix, rates=self._rates, access=access, window=window
        )
        shares = await publisher.publish(scanner, spool)
        return await self._begin(order, prefix, shares, settled, len(scanner.unserved))

    async def _reserve(self, order: BatchOrder, asked: Enqueued, access: Access) -> Excess | None:
        """Before anything is written; what a batch has left of it follows from its progress."""
        limits = access.own.limits(self._settings.quotas)
        excess = await self._database.quotas.reserve(order.tenant, order.batch_id, asked, limits)
        if excess is not None:
            tenant = self._metrics.tenants(order.tenant)
            self._metrics.quota_refusals.labels(tenant, excess.quota.value).inc()
        return excess

    async def _scan(self, file: FileRow, scanner: Scanner, spool: Spool, window: Window) -> None:
        """While a piece is scanned the next one is read; it is kept, unless the input is a file at hand."""
        at_hand = await self._storage.opened(file.storage_key)
        keeps = at_hand is None or not spool.takes(at_hand)
        if keeps:
            spool.require(file.bytes)
        reading = self._storage.read(file.storage_key)
        piece = await _next_piece(reading)
        while piece:
            scanner.closed = window.is_over
            taking = _take(piece, scanner, spool, keeps=keeps)
            piece, _ = await side_by_side(_next_piece(reading), taking)
        await spool.off_loop(scanner.finish)

    async def _begin(
        self,
        order: BatchOrder,
        prefix: str,
        shares: list[ModelShare],
        settled: dict[str, ModelCount],
        unserved: int,
    ) -> IngestResult:
        """`settled` are the lines that ingestion has results of, by model; some of its planned models."""
        before = sum(count.lines for count in settled.values())
        total = before + sum(share.lines + share.duplicates for share in shares)
        completed = sum(count.completed for count in settled.values())
        models = [_whole(share, settled.pop(share.model, None)) for share in shares]
        await self._database.batches.begin(
            order.tenant,
            order.batch_id,
            total=total,
            models=[*models, *settled.values()],
            at=_now(),
            unserved=before - completed,
            completed=completed,
        )
        return IngestResult(
            prefix=prefix,
            models=shares,
            total=total,
            unserved=unserved,
            adopted=before - unserved,
            closed=any(not share.slices for share in shares),
        )

    async def _fail(
        self, order: BatchOrder, errors: list[ValidationError], found: int = 1, total: int = 0
    ) -> IngestResult:
        moved = await self._database.batches.fail_validation(
            order.tenant, order.batch_id, errors=errors, total=total, at=_now()
        )
        if moved:
            count_refused(self._metrics, order, _now())
            _tell_refusal(errors, found)
        else:
            # An earlier attempt may have begun the batch under other settings: `end` leaves any live status.
            status = BatchStatus.FAILED
            row = await self._database.batches.end(order.tenant, order.batch_id, status, errors, _now())
            if row.status is not status:
                return _as_it_ended(row)
        await self._trace_failure(order)
        return IngestResult(failed=True, total=total, errors=found)

    async def _trace_failure(self, order: BatchOrder) -> None:
        row = await self._database.batches.get(order.tenant, order.batch_id) if tracing.spans() else None
        if row is not None:
            trace_end(row)


async def _take(piece: bytes, scanner: Scanner, spool: Spool, *, keeps: bool) -> None:
    scanning = spool.off_loop(scanner.feed, piece)
    if keeps:
        await side_by_side(scanning, spool.off_loop(spool.write, piece))
    else:
        await scanning


async def _next_piece(reading: AsyncIterator[bytes]) -> bytes:
    """About a MiB of what is read, whatever the storage gives at a time; nothing at its end."""
    pieces: list[bytes] = []
    size = 0
    while size < _PIECE_BYTES and (piece := await anext(reading, None)) is not None:
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _whole(share: ModelShare, settled: ModelCount | None) -> ModelCount:
    """The model's lines, those in slices and those that have their results."""
    lines = share.lines + share.duplicates
    if settled is None:
        return ModelCount(model=share.model, lines=lines, duplicates=share.duplicates)
    return settled.model_copy(update={"lines": lines + settled.lines, "duplicates": share.duplicates})


def _tell(result: IngestResult, seconds: float) -> None:
    data = {
        "lines": result.total,
        "slices": sum(share.slices for share in result.models),
        "unserved": result.unserved,
        "adopted": result.adopted,
        "duplicates": sum(share.duplicates for share in result.models),
        "models": ",".join(share.model for share in result.models[:_TOLD_MODELS]),
        "seconds": seconds,
    }
    _log.info("batch ingested", extra=data)


def _tell_refusal(errors: list[ValidationError], found: int) -> None:
    """Codes and places; the messages, which may quote the input, are in the batch."""
    first = errors[0]
    data = {"errors": found, "code": first.code, "line": first.line}
    _log.warning("batch failed in validation", extra=data)


def _as_it_ended(row: BatchRow) -> IngestResult:
    """Of a batch that has ended: failed in validation by an earlier attempt, or cancelled meanwhile."""
    failed = row.status is BatchStatus.FAILED
    return IngestResult(failed=failed, total=row.total, errors=len(row.errors))


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
