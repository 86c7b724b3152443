"""Finalization: from segments to the output and error file, and the end of the batch's row."""

import asyncio
import time
from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities import memory
from activities.ending import clean, count_end, count_skipped, tell_end, trace_end
from activities.errors import failure, translated
from activities.finalize.collect import Collector
from activities.finalize.doubles import Doubles
from activities.finalize.files import Files
from activities.finalize.missing import Missing, find_missing
from activities.finalize.settled import Choice, Settled
from activities.finalize.spool import Spool
from activities.finalize.unsettled import Unsettled
from activities.heartbeat import beating
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import Failure
from batchwright.contracts.finalization import FinalizationActivities, FinalizeRequest, FinalizeResult
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import BatchRow, ModelCount, Outcome
from batchwright.rules import keys
from batchwright.rules.dead_letters import DeadLetter, dead_letter
from batchwright.rules.ids import request_id
from batchwright.rules.plan import PlanDamaged
from batchwright.rules.segments import SegmentDamaged
from batchwright.settings import Settings
from batchwright.storage.base import Storage, StorageError
from batchwright.telemetry.metrics import Metrics


class Finalization(FinalizationActivities):
    def __init__(
        self, database: DatabaseLike, storage: Storage, settings: Settings, metrics: Metrics
    ) -> None:
        self._database = database
        self._storage = storage
        self._settings = settings
        self._metrics = metrics

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        """Write the files and end the row, once, however often it runs.

        Every attempt makes the same files under the same ids; one transaction lets one attempt win, and the
        others answer as it did. The batch's scratch objects go when the row has ended.

        Raises (ApplicationError, by type):
            StorageUnavailable, DatabaseUnavailable: retried.
            CancelAccepted: retried, until the run, which has heard of it too, stops that.
            PlanDamaged, ResultsDamaged, InputVanished: not retried; the row is as it was.
        """
        order = request.order
        async with beating(), translated():
            row = await self._database.batches.upsert(order)
            if row.status.is_terminal:
                count_skipped(self._metrics)
            else:
                row = await self._end(request)
            trace_end(row)
            await clean(self._storage, self._database.files, order)
        await asyncio.to_thread(memory.give_back, memory.of_this_process(), request.total)
        return FinalizeResult(status=row.status, completed=row.completed, failed=row.failed, usage=row.usage)

    async def _end(self, request: FinalizeRequest) -> BatchRow:
        """A slower attempt misses what the one that won has deleted: that is no failure of the batch."""
        order = request.order
        started = time.monotonic()
        try:
            row = await self._finalize(request)
        except (StorageError, PlanDamaged, SegmentDamaged, ApplicationError):
            row = await self._database.batches.get(order.tenant, order.batch_id)
            if row is None or not row.status.is_terminal:
                raise
            return row
        self._metrics.finalize_seconds.observe(time.monotonic() - started)
        return row

    async def _finalize(self, request: FinalizeRequest) -> BatchRow:
        order = request.order
        if request.status is BatchStatus.COMPLETED:
            await self._database.batches.start_finalizing(order.tenant, order.batch_id, _now())
        with Spool(self._settings.spool_dir) as spool, Settled(spool) as settled:
            choice, models = await self._settle_all(request, spool, settled)
            files = Files(self._storage, self._settings, order, request.status)
            output, error = await files.write(settled, choice, _now())
            letters = await asyncio.to_thread(self._dead_letters, order, settled, choice)
        outcome = Outcome(
            status=request.status,
            completed=len(choice.output),
            failed=len(choice.error),
            usage=choice.usage,
            models=models,
            output=output,
            error=error,
            errors=request.errors,
            dead_letters=letters,
        )
        return await self._finish(request, outcome)

    def _dead_letters(self, order: BatchOrder, settled: Settled, choice: Choice) -> list[DeadLetter]:
        found = settled.finals(choice, self._settings.max_dead_letters)
        return [
            dead_letter(payload, id=request_id(order.batch_id, offset), offset=offset)
            for offset, payload in found
        ]

    async def _finish(self, request: FinalizeRequest, outcome: Outcome) -> BatchRow:
        order, at = request.order, _now()
        row = await self._database.batches.finish(order.tenant, order.batch_id, outcome, at)
        if not row.status.is_terminal:
            raise ApplicationError(
                "A cancel was accepted before the batch was completed.",
                type=Failure.CANCEL_ACCEPTED,
                category=ApplicationErrorCategory.BENIGN,
            )
        if row.status is outcome.status:
            count_end(self._metrics, row, at)
            for share in request.models:
                self._metrics.duplicates.labels(share.model).inc(share.duplicates)
            tell_end(row, at)
        return row

    async def _settle_all(
        self, request: FinalizeRequest, spool: Spool, settled: Settled
    ) -> tuple[Choice, list[ModelCount]]:
        """Exactly one result for every line of the batch, and the counts of each planned model.

        Raises Failure.RESULTS_DAMAGED if that fails.
        """
        order = request.order
        collector = Collector(self._storage, spool, settled)
        before = await collector.take(keys.unserved(request.prefix))
        if order.origin is not None:
            before += await collector.take_root(keys.adopted_root(request.prefix))
        await collector.take_all(keys.results_root(order.tenant, order.batch_id))
        choice = await asyncio.to_thread(settled.choose)
        offsets = await asyncio.to_thread(lambda: [settled.offsets_of(part) for part in choice[:2]])
        missing = await find_missing(self._storage, request.prefix, request.models, *offsets)
        del offsets
        _check(request, choice, missing, before)
        if missing:
            await self._settle_missing(request, missing, settled)
            choice = await asyncio.to_thread(settled.choose)
        models = missing.models
        if _duplicates(request):
            doubles = await asyncio.to_thread(Doubles, self._storage, request, spool, settled, choice)
            models = await doubles.settle(models)
            choice = await asyncio.to_thread(settled.choose)
        if choice.lines != request.total:
            raise failure(
                Failure.RESULTS_DAMAGED,
                f"Batch {order.batch_id!r} has {request.total} lines, its files would have {choice.lines}.",
            )
        return choice, models

    async def _settle_missing(self, request: FinalizeRequest, missing: Missing, settled: Settled) -> None:
        order = request.order
        row = await self._database.files.get(order.tenant, order.input_file_id)
        async with translated(Failure.INPUT_VANISHED):
            unsettled = Unsettled(self._storage, request, missing, settled)
            await unsettled.settle(row.storage_key if row else None)


def _check(request: FinalizeRequest, choice: Choice, missing: Missing, before: int) -> None:
    """Every result belongs to a planned line, or to one that ingestion settled."""
    total = request.total - _duplicates(request)
    if choice.lines == missing.found + before and choice.lines + len(missing) == total:
        return
    raise failure(
        Failure.RESULTS_DAMAGED,
        f"Batch {request.order.batch_id!r} has {total} lines; {choice.lines} have a result "
        f"({missing.found} of the plans', {before} from ingestion) and {len(missing)} have none.",
    )


def _duplicates(request: FinalizeRequest) -> int:
    return sum(share.duplicates for share in request.models)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
