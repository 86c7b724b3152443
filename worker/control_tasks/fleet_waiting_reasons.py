"""Find out why batches wait, and publish the reasons. Workers with the role `control` run this.

A batch may wait because an operator has stopped the sending (a hold), because no worker polls its task queue,
because of a rate limit, or because slices (parts) of other batches come first.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from temporalio.service import RPCError

from batchwright.activities.services.signal_budget import SignalBudget
from batchwright.activities.services.waiting_reason_publisher import ReasonSignal
from batchwright.contracts.temporal_names import IO_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.contracts.terms import BatchStatus, HoldKind
from batchwright.database.database import Database
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.fleet import ModelBacklog
from batchwright.rules.ids import safe_name
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.rules.worker_stats import (
    FRESH_AGE,
    is_polled,
    polled_queues,
    running_models,
    unpolled_reason,
)
from batchwright.temporal.task_queues import DescribeQueue, QueueReport

logger = logging.getLogger(__name__)
_INTERVAL_SECONDS = 2.5
_STALLED_SECONDS = 5.0  # a model that has settled a line within this time does not wait
_VALID_SECONDS = 30.0
_KEEP_EXPIRED = timedelta(hours=1)
_OWN_SLICES_STALLED = (
    "its running slices have received no response recently, and its other slices wait for them"
)
_HELD = {
    HoldKind.TENANT: "an operator holds the tenant: its lines are not sent until the hold is released",
    HoldKind.MODEL: "an operator holds the model: its lines are not sent until the hold is released",
}
_BatchModel = tuple[str, str, str]  # tenant, batch, model; an empty model stands for the whole batch
# Statuses of batches whose next step runs on a worker that reads and writes files.
_NEEDS_IO_WORKER = (BatchStatus.VALIDATING, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


def _now() -> datetime:
    return datetime.now(UTC)


class ModelRates(Protocol):
    def pacing_of(self, model: str) -> Pacing | None: ...

    def queue_of(self, model: str) -> str:
        """Return the task queue that the model shares with other models; empty if it has its own queue."""
        ...


class WaitingReasonMonitor:
    """The monitor that writes to the database why live batches wait.

    The monitor also reports changed reasons to the batches' workflows. All control workers find the same
    reasons. Only the worker that first writes a changed reason to the database reports the reason to the
    workflow. `SignalBudget` limits the number of signals to each workflow. If no signal is allowed now, the
    worker reports the reason later.
    """

    def __init__(
        self,
        database: Database,
        describe_queue: DescribeQueue,
        rates: ModelRates,
        report: ReasonSignal,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._database, self._describe_queue, self._rates = database, describe_queue, rates
        self._report, self._now = report, now
        self._progress: dict[_BatchModel, tuple[int, datetime]] = {}  # number of lines left, and since when
        self._signals = SignalBudget(lambda: self._now().timestamp())
        self._due: dict[
            _BatchModel, WaitingReason
        ] = {}  # changes that this process has written, not reported
        self._shown: set[_BatchModel] = set()  # whose workflow has a reason from this process

    async def run(self) -> None:
        """Call `refresh` regularly, until cancelled."""
        while True:
            try:
                await self.refresh()
            except (DatabaseUnavailable, RPCError) as error:
                logger.info("waiting reasons cannot be refreshed", extra={"error": str(error)})
            await asyncio.sleep(_INTERVAL_SECONDS)

    async def refresh(self) -> None:
        """Find the waiting reasons of all live batches. Write and report changed reasons, clear old ones.

        Raises:
            DatabaseUnavailable: the database does not respond.
            RPCError: Temporal does not respond.
        """
        now = self._now()
        workers = await self._database.workers.heartbeats(FRESH_AGE)
        polled = polled_queues(worker.stats for worker in workers)
        reasons = await self._model_reasons(polled, running_models(worker.stats for worker in workers), now)
        if IO_QUEUE not in polled:
            reasons |= await self._file_reasons(now)
        for key, reason in reasons.items():
            await self._publish(key, reason, now)
        for row in await self._database.waiting.get(WaitingSource.FLEET, now):
            key = (row.tenant, row.batch_id, row.model)
            if key not in reasons and await self._database.waiting.clear(*key, WaitingSource.FLEET):
                is_unknown = self._due.pop(key, None) is not None and key not in self._shown
                if not is_unknown:
                    self._due[key] = WaitingReason(model=row.model, fleet_wide=True)
        await self._report_due(reasons)
        await self._database.waiting.delete_expired(now - _KEEP_EXPIRED)

    async def _file_reasons(self, now: datetime) -> dict[_BatchModel, str]:
        """Return the waiting reason of each live batch whose next activity reads or writes files.

        Call this method only if no worker polls the task queue of these activities. This is the reason of all
        these batches.
        """
        reason = unpolled_reason(IO_QUEUE)
        return {
            (batch.tenant, batch.id, ""): reason
            for batch in await self._database.fleet.live()
            if batch.entered_at <= now and (batch.status in _NEEDS_IO_WORKER or batch.deadline <= now)
        }

    async def _model_reasons(
        self, polled: Collection[str], running: Collection[tuple[str, str]], now: datetime
    ) -> dict[_BatchModel, str]:
        """Return why the lines of a batch wait, for each batch and each of its models.

        Models whose lines do not wait are left out. There are three possible reasons:

        - An operator has stopped the sending of the tenant's or the model's lines.
        - No worker polls the model's task queue.
        - Slices wait in the task queue, and no line got a result for some seconds.

        Args:
            polled: task queues that at least one worker polls.
            running: batch id and model of each running slice (activity that sends lines).
            now: the current time.
        """
        backlogs = await self._database.fleet.backlogs(now)
        stalled = self._find_stalled(backlogs, now)
        queues = [
            self._rates.queue_of(backlog.model) or inference_queue(safe_name(backlog.model))
            for backlog in backlogs
        ]
        batches = {(queue, backlog.batch_id) for queue, backlog in zip(queues, backlogs, strict=True)}
        batches_in_queue = Counter(queue for queue, _ in batches)
        reports: dict[str, QueueReport] = {}
        reasons: dict[_BatchModel, str] = {}
        for backlog, queue in zip(backlogs, queues, strict=True):
            if backlog.held is not None:
                reasons[_key(backlog)] = _HELD[backlog.held]
            elif not is_polled(queue, polled):
                reasons[_key(backlog)] = unpolled_reason(queue)
            elif _key(backlog) in stalled:
                if queue not in reports:
                    reports[queue] = await self._describe_queue(queue)
                is_running = (backlog.batch_id, backlog.model) in running
                waits_for_own = is_running or batches_in_queue[queue] == 1
                reason = self._queue_reason(
                    backlog.model, reports[queue].backlog, waits_for_own=waits_for_own
                )
                if reason:
                    reasons[_key(backlog)] = reason
        return reasons

    def _find_stalled(self, backlogs: list[ModelBacklog], now: datetime) -> set[_BatchModel]:
        """Return each (tenant, batch id, model) whose lines got no result for `_STALLED_SECONDS`."""
        before, self._progress = self._progress, {}
        for backlog in backlogs:
            left, since = before.get(_key(backlog), (backlog.lines_left, now))
            is_unchanged = left == backlog.lines_left
            self._progress[_key(backlog)] = (backlog.lines_left, since if is_unchanged else now)
        patience = timedelta(seconds=_STALLED_SECONDS)
        return {key for key, (_, since) in self._progress.items() if now - since >= patience}

    def _queue_reason(self, model: str, depth: int, *, waits_for_own: bool) -> str:
        """Return why the lines of a model get no results although workers poll its task queue.

        Return an empty text if no slice (activity that sends lines) waits in the queue. The running slices
        then report their own reasons.

        Args:
            model: name of the model.
            depth: number of slices of all batches that wait in the queue.
            waits_for_own: False if the batch waits for slices of other batches. True if a slice of this batch
                and model is running, or if no other batch has lines for the queue.
        """
        if not depth:
            return ""  # running slices report their own reasons
        pacing = self._rates.pacing_of(model)
        if pacing is not None:
            return f"limited by a rate of {pacing.requests_per_second:g} requests per second"
        return _OWN_SLICES_STALLED if waits_for_own else _behind(depth)

    async def _publish(self, key: _BatchModel, reason: str, now: datetime) -> None:
        tenant, batch_id, model = key
        row = WaitingRow(
            tenant=tenant,
            batch_id=batch_id,
            model=model,
            source=WaitingSource.FLEET,
            reason=reason,
            since=now,
            until=now + timedelta(seconds=_VALID_SECONDS),
        )
        if await self._database.waiting.report(row):
            logger.info("batch blocked", extra={"batch_id": batch_id, "model": model, "reason": reason})
            self._due[key] = WaitingReason(model=model, reason=reason, since=now, fleet_wide=True)

    async def _report_due(self, reasons: Mapping[_BatchModel, str]) -> None:
        """Report changed reasons to the batches' workflows, if `SignalBudget` allows a signal now.

        If no signal is allowed now, a later call reports the change. If the reason changes again before that
        call, the earlier change is dropped. If this process has reported a reason that no longer applies, the
        process may always report this.
        """
        self._due = {key: due for key, due in self._due.items() if due.reason == reasons.get(key, "")}
        for key, due in list(self._due.items()):
            _, batch_id, _ = key
            if (not due.reason and key in self._shown) or self._signals.take(batch_id):
                del self._due[key]
                self._shown.discard(key)
                if due.reason:
                    self._shown.add(key)
                await self._report(batch_id, due)
        self._shown &= reasons.keys() | self._due.keys()


def _behind(slices: int) -> str:
    """Return the waiting reason of a batch that waits behind `slices` activities of other batches.

    The number in the text is rounded down to a power of ten, so that the reason rarely changes.
    """
    least = 10 ** (len(str(slices)) - 1)
    return f"behind {least:,} or more other slices in its queue" if least > 1 else "behind a few other slices"


def _key(backlog: ModelBacklog) -> _BatchModel:
    return backlog.tenant, backlog.batch_id, backlog.model
