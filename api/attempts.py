"""How many wrong keys a client's address has sent of late: a bucket for each that leaks, of few addresses."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MOST_ADDRESSES = 10_000  # beyond, the one that was silent longest is forgotten
_NETWORK_BITS = 64  # of IPv6: a client has as many addresses as it wants below that


class _Level(NamedTuple):
    failures: float
    at: float


class Attempts:
    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`per_minute` failures at once, and as many a minute from then on; 0: no limit."""
        self._most = per_minute
        self._monotonic = monotonic
        self._levels: OrderedDict[str, _Level] = OrderedDict()

    def wait_seconds(self, address: str) -> int:
        """Until the address may fail again; 0: now."""
        too_many = self._failures(_client(address)) + 1 - self._most
        if not self._most or too_many <= 0:
            return 0
        return math.ceil(too_many * 60 / self._most)

    def failed(self, address: str) -> None:
        if not self._most:
            return
        client = _client(address)
        self._levels[client] = _Level(self._failures(client) + 1, self._monotonic())
        self._levels.move_to_end(client)
        if len(self._levels) > MOST_ADDRESSES:
            self._levels.popitem(last=False)

    def _failures(self, client: str) -> float:
        """What has not leaked yet."""
        level = self._levels.get(client)
        if level is None:
            return 0.0
        return max(0.0, level.failures - (self._monotonic() - level.at) * self._most / 60)


def _client(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, _NETWORK_BITS), strict=False))
