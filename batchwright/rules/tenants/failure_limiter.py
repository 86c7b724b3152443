"""Limit how often a client or tenant may fail, for example with wrong keys.

Each client or tenant has a leaky bucket: failures fill it, and it empties at a constant rate.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MAX_ADDRESSES = 10_000  # for more addresses, the least recently active one is dropped
_NETWORK_BITS = 64  # IPv6 clients can use any address of their /64 network


class _FailureLevel(NamedTuple):
    failures: float
    at: float


class FailureLimiter:
    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Create the limiter.

        Args:
            per_minute: number of failures that a client may have per minute. It may have all of them at once.
                0 disables the limit.
            monotonic: returns the current time in seconds.
        """
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._levels: OrderedDict[str, _FailureLevel] = OrderedDict()

    def wait_seconds(self, address: str) -> int:
        """Return the seconds until the client may try again; 0 if it may try now.

        Args:
            address: IP address of the client, or another name that identifies it.
        """
        too_many = self._failures(_network(address)) + 1 - self._per_minute
        if not self._per_minute or too_many <= 0:
            return 0
        return math.ceil(too_many * 60 / self._per_minute)

    def acquire(self, address: str) -> None:
        """Count an attempt of a client (`address`) as a failure, before it is known if the attempt fails.

        So concurrent attempts cannot exceed the limit. If the attempt succeeds, call `release` afterwards.
        """
        self._change(address, 1)

    def release(self, address: str) -> None:
        """Undo a call of `acquire` for the client `address`, because the attempt did not fail."""
        self._change(address, -1)

    def _change(self, address: str, by: int) -> None:
        if not self._per_minute:
            return
        client = _network(address)
        self._levels[client] = _FailureLevel(self._failures(client) + by, self._monotonic())
        self._levels.move_to_end(client)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)

    def _failures(self, client: str) -> float:
        """Return the number of a client's recent failures. Older failures count less.

        `client` is an IPv4 address or the network of an IPv6 address, as `_network` returns it.
        """
        level = self._levels.get(client)
        if level is None:
            return 0.0
        return max(0.0, level.failures - (self._monotonic() - level.at) * self._per_minute / 60)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, _NETWORK_BITS), strict=False))
