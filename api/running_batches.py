"""Finds batches that have a running workflow in Temporal, but no database row yet. For each tenant, limits
the number of searches for ids without such a batch.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from batchwright.api.errors import rate_limited
from batchwright.api.read_cache import CoalescingCache
from batchwright.api.temporal_gateway import TemporalGateway
from batchwright.contracts.temporal_payloads.batch import SAFETY_MARGIN, BatchOrder
from batchwright.rules.deadline import MAX_START_DELAY
from batchwright.rules.ids import made_at
from batchwright.rules.tenants.attempt_limiter import AttemptLimiter
from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable

UNKNOWN_PER_MINUTE = 60  # ids without a running batch, for each tenant and process
_REMEMBERED_SECONDS = 10.0


class _Found(NamedTuple):
    order: BatchOrder | None


class RunningBatches:
    """A search in Temporal for running batches by id.

    Clients may send many unknown ids (ids without a running batch). Therefore:

    - An id contains the time at which its batch was created. If every batch of that time must have ended,
      Temporal is not searched.
    - The result of each search is cached for some seconds.
    - If a tenant sends too many unknown ids, the error is a 429, and Temporal is not searched. The error is
      not a 404, because the batch may exist.
    """

    def __init__(
        self,
        temporal: TemporalGateway,
        settings: Settings,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._temporal, self._clock = temporal, clock
        longest = timedelta(seconds=settings.max_window_seconds + settings.finalize_patience_seconds)
        self._max_age = MAX_START_DELAY + longest + SAFETY_MARGIN
        self._unknown = AttemptLimiter(UNKNOWN_PER_MINUTE, monotonic)
        self._orders = CoalescingCache(self._read, _REMEMBERED_SECONDS, monotonic)

    async def order(self, tenant: str, batch_id: str) -> BatchOrder | None:
        """Return the BatchOrder of a running batch: the message that started the workflow of the batch.

        Return None in these cases:

        - The tenant has no running batch with this id.
        - The id contains no creation time, like the ids of batches that schedules create.

        Raises:
            ApiError: the tenant has sent too many unknown ids (429).
            TemporalUnavailable: the batch may run, but Temporal does not respond, or the order cannot be
                decrypted.
        """
        made = made_at(batch_id)
        # The ids that schedules make have no time. No client knows such an id before the batch has its row.
        if made is None or self._clock().timestamp() - made > self._max_age.total_seconds():
            return None
        return (await self._orders.get((tenant, batch_id))).order

    async def _read(self, key: tuple[str, str]) -> _Found:
        tenant, batch_id = key
        if seconds := self._unknown.wait_seconds(tenant):
            message = f"Too many requests for unknown batches. Try again in {seconds} s."
            raise rate_limited(message, UNKNOWN_PER_MINUTE, seconds=seconds, window=60)
        self._unknown.acquire(tenant)
        try:
            order = await self._temporal.running_order(batch_id)
        except TemporalUnavailable:
            self._unknown.release(tenant)
            raise
        if order is None or order.tenant != tenant:
            return _Found(None)
        self._unknown.release(tenant)
        return _Found(order)
