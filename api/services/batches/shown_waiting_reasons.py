"""Finds the reasons why batches wait: reasons that workers report, and task queues of Temporal that no worker
polls.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import NamedTuple

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.read_cache import CoalescingCache
from batchwright.contracts.api_objects.openai import WaitingObject
from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE
from batchwright.contracts.temporal_payloads.batch import SCHEDULED
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.limits.rate_allocation import RateTable, effective_rates
from batchwright.rules.worker_stats import (
    FRESH_AGE,
    is_polled,
    is_unpolled_reason,
    polled_queues,
    unpolled_reason,
)

PAUSED = "paused"


class PolledQueues(NamedTuple):
    """The names of Temporal's task queues that workers poll, and the present rate limits of models.

    The name of a model's task queue depends on the rate limit of the model. With the rate limits, the API
    finds out which task queues a batch needs, and whether workers poll these queues.
    """

    queues: Collection[str]
    rates: RateTable


class BatchWaitingReasons:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._table = deps.database.waiting
        self._cache = CoalescingCache(self._read, deps.recent_seconds)

    async def polled_queues(self) -> PolledQueues:
        return await self._cache.get(FRESH_AGE)

    async def reported(self, rows: Collection[BatchRow]) -> Mapping[tuple[str, str], list[WaitingRow]]:
        """Return the stored waiting reasons of the batches, by tenant and batch id.

        A batch without reasons has an empty list.
        """
        found: defaultdict[tuple[str, str], list[WaitingRow]] = defaultdict(list)
        batches = [(row.order.tenant, row.order.batch_id) for row in rows]
        for reason in await self._table.of_batches(batches, self._deps.clock()):
            found[reason.tenant, reason.batch_id].append(reason)
        return found

    def of_batch(
        self, row: BatchRow, reported: list[WaitingRow], polled: PolledQueues
    ) -> list[WaitingObject]:
        """Return the reasons why a batch or its models wait; empty if nothing waits or the batch has ended.

        A task queue that the batch needs but that no worker polls is a reason, too.

        Args:
            reported: waiting reasons of the batch that are stored in the database.
            polled: the task queues that workers poll, as returned by `polled_queues`.
        """
        if row.status not in LIVE_STATES:
            return []
        order = row.order
        shown = [
            WaitingObject(model=each.model or None, reason=each.reason, since=int(each.since.timestamp()))
            for each in reported
        ]
        if order.start_at is not None and order.start_at > self._deps.clock():
            since = int(order.created_at.timestamp())
            return [*shown, WaitingObject(model=None, reason=SCHEDULED, since=since)]
        reported_reasons = {each.reason for each in reported if not each.model}
        reported_models = {each.model for each in reported if each.model and is_unpolled_reason(each.reason)}
        unserved = [
            each
            for each in _without_workers(row, polled)
            if each.model not in reported_models and (each.model or each.reason not in reported_reasons)
        ]
        return [*shown, *unserved]

    async def report_paused(self, row: BatchRow, change: int) -> None:
        """Store the waiting reason "paused" of a batch, which clients then see.

        The pauses and resumes of a batch are numbered in their order. If a later pause or resume is already
        stored, do nothing.

        Args:
            row: row of the batch.
            change: number of this pause.
        """
        order, now = row.order, self._deps.clock()
        paused = WaitingRow(
            tenant=order.tenant,
            batch_id=order.batch_id,
            source=WaitingSource.USER,
            reason=PAUSED,
            since=now,
            until=order.deadline + timedelta(days=1),
        )
        await self._table.report_pause(paused, change)

    async def clear_paused(self, row: BatchRow, change: int) -> None:
        """Delete the waiting reason "paused" of a batch after the batch was resumed.

        The pauses and resumes of a batch are numbered in their order. If a later pause or resume is already
        stored, do nothing.

        Args:
            row: row of the batch.
            change: number of this resume.
        """
        await self._table.clear_pause(row.order.tenant, row.order.batch_id, change)

    async def _read(self, max_age: timedelta) -> PolledQueues:
        database = self._deps.database
        beats = await database.workers.heartbeats(max_age)
        changes = {row.model: row.requests_per_second for row in await database.rates.all()}
        rates = effective_rates(self._deps.settings.rates, changes)
        return PolledQueues(polled_queues(beat.stats for beat in beats), rates)


def _without_workers(row: BatchRow, polled: PolledQueues) -> list[WaitingObject]:
    """Return a waiting reason for each of Temporal's task queues that the batch needs but that no worker
    polls.

    The API finds these reasons itself, because workers cannot report them if no worker is running.
    """
    missing = [queue for queue in (CONTROL_QUEUE, IO_QUEUE) if queue not in polled.queues]
    found = [WaitingObject(model=None, reason=unpolled_reason(queue)) for queue in missing]
    if row.status is BatchStatus.IN_PROGRESS:
        left = [each.model for each in row.models if each.lines > each.completed + each.failed]
        found += [
            WaitingObject(model=model, reason=unpolled_reason(queue))
            for model in left
            if not is_polled(queue := polled.rates.queue_of(model), polled.queues)
        ]
    return found
