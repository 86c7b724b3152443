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
    """A source of Retry-After values that spread the retries of a tenant: about one retry per second.

    If many requests of a tenant are rejected at the same time, their values are 5 s, 6 s, 7 s and so on. If
    the next value would be over `MAX_RETRY_SECONDS`, the value is random: from `MAX_RETRY_SECONDS // 2` to
    `MAX_RETRY_SECONDS`.
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
