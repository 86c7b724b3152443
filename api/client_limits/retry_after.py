"""Chooses when rejected batch creations may be retried, so that the retries do not come all together."""

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MIN_RETRY_SECONDS = 5
MAX_RETRY_SECONDS = 60  # the official clients ignore a longer Retry-After
MAX_TENANTS = 10_000


class _RejectedCallers(NamedTuple):
    callers: float
    at: float


class RetryAfterSpread:
    """A source of Retry-After values for rejected requests. With these values, a tenant sends about one retry
    per second.

    If a tenant has many requests rejected at the same time, they get the values 5, 6, 7 and so on (seconds).
    If the next value would be over `MAX_RETRY_SECONDS`, the request gets a random value between half of this
    maximum and the maximum.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._levels: OrderedDict[str, _RejectedCallers] = OrderedDict()

    def next_seconds(self, tenant: str) -> int:
        """Count a rejected request of the tenant, and return its Retry-After value in seconds."""
        now = self._monotonic()
        level = self._levels.get(tenant, _RejectedCallers(0.0, now))
        waiting = max(0.0, level.callers - (now - level.at))
        self._levels[tenant] = _RejectedCallers(min(waiting + 1, MAX_RETRY_SECONDS), now)
        self._levels.move_to_end(tenant)
        if len(self._levels) > MAX_TENANTS:
            self._levels.popitem(last=False)
        seconds = MIN_RETRY_SECONDS + int(waiting)
        if seconds <= MAX_RETRY_SECONDS:
            return seconds
        return random.randint(MAX_RETRY_SECONDS // 2, MAX_RETRY_SECONDS)
