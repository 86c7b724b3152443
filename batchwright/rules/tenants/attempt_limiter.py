"""Limit how often a client or tenant may try something, for example send a wrong key or replay an event.

Each client or tenant has a leaky bucket: attempts fill it, and it empties at a constant rate.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MAX_ADDRESSES = 10_000  # for more addresses, the least recently active one is dropped
_NETWORK_BITS = 64  # IPv6 clients can use any address of their /64 network


class _Level(NamedTuple):
    attempts: float
    at: float


class AttemptLimiter:
    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Create the limiter.

        Args:
            per_minute: number of attempts that a client may make per minute. The client may make all these
                attempts at the same time. 0 disables the limit.
            monotonic: returns the current time in seconds.
        """
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._levels: OrderedDict[str, _Level] = OrderedDict()

    def wait_seconds(self, client: str) -> int:
        """Return the seconds until the client may try again; 0 if it may try now.

        Args:
            client: IP address or another name of the client, such as its tenant.
        """
        too_many = self._attempts(_network(client)) + 1 - self._per_minute
        if not self._per_minute or too_many <= 0:
            return 0
        return math.ceil(too_many * 60 / self._per_minute)

    def acquire(self, client: str) -> None:
        """Count an attempt of a client. This method never rejects an attempt.

        First call `wait_seconds`. If the result is 0, call `acquire`, and then make the attempt. In this
        order, attempts in progress count, too. To count only failed attempts, call `release` after each
        success.
        """
        self._change(client, 1)

    def release(self, client: str) -> None:
        """Undo one call of `acquire`, for an attempt that does not count."""
        self._change(client, -1)

    def _change(self, client: str, by: int) -> None:
        if not self._per_minute:
            return
        bucket = _network(client)
        self._levels[bucket] = _Level(self._attempts(bucket) + by, self._monotonic())
        self._levels.move_to_end(bucket)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)

    def _attempts(self, bucket: str) -> float:
        """Return the number of attempts in a client's bucket. The number decreases at a constant rate.

        `bucket` is the client's IPv4 address, IPv6 network or other name (the result of `_network`).
        """
        level = self._levels.get(bucket)
        if level is None:
            return 0.0
        return max(0.0, level.attempts - (self._monotonic() - level.at) * self._per_minute / 60)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, _NETWORK_BITS), strict=False))
