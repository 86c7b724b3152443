"""Memory limit of one process, in bytes, for fetched shards and for requests and responses.

A shard holds the input lines of a model; a worker fetches the part of the shard that belongs to one slice. A
response takes memory until it is stored.
"""

from collections import deque
from dataclasses import dataclass

_INITIAL_ESTIMATE = 64 * 1024  # size of a response, until some have been observed


@dataclass(eq=False, slots=True)
class Reservation:
    """Memory of `size` bytes for the lines of one slice.

    `granted` becomes True when the budget has room for it. `MemoryBudget.shrink` makes it smaller then.
    """

    size: int
    granted: bool = False


class MemoryBudget:
    """Limit the bytes that one process holds: one half for shards, one half for requests and their responses.

    The halves are separate, because otherwise waiting shards could use the memory that slices need to make
    progress, and without progress no memory is freed. Shards get memory in the order of their reservations,
    so that small shards do not delay a large one forever. The size of a response that has not arrived yet is
    estimated from recent ones.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._shards = 0
        self.response_bytes = 0  # bytes of requests and responses; holders add to it and subtract from it
        self._estimate = float(_INITIAL_ESTIMATE)
        self._wanted: deque[Reservation] = deque()

    @property
    def held(self) -> int:
        return self._shards + self.response_bytes

    @property
    def waiting(self) -> int:
        """Number of shards that wait for memory."""
        return len(self._wanted)

    def has_room(self) -> bool:
        """Return True if there is memory for another request. If no request is held, it is always True."""
        return not self.response_bytes or self.response_bytes + self._estimate < self._half

    def reserve(self, size: int) -> Reservation:
        """Queue a reservation of `size` bytes for a shard and return it. Its `granted` may become True later.

        Pass the reservation to `release` in the end, even if it was never granted. A shard that is larger
        than the memory for all shards is granted when no other shard is held.
        """
        room = Reservation(size)
        self._wanted.append(room)
        self._grant()
        return room

    def release(self, room: Reservation) -> None:
        """Give back the memory of a granted reservation, or remove a reservation that still waits."""
        if room.granted:
            self._shards -= room.size
        else:
            self._wanted.remove(room)
        self._grant()

    def shrink(self, room: Reservation, size: int) -> None:
        """Give back a part of the memory of a granted reservation, so that `size` bytes are left."""
        self._shards -= room.size - size
        room.size = size
        self._grant()

    def reserve_response(self, request_bytes: int) -> int:
        """Hold memory for a request of `request_bytes` and its estimated response. Return the sum, in bytes.

        The caller subtracts this number from `response_bytes` later.
        """
        size = request_bytes + int(self._estimate)
        self.response_bytes += size
        return size

    def observe_response(self, answer_bytes: int) -> None:
        """Update the estimated size of a response, because a response of `answer_bytes` has arrived.

        A larger response raises the estimate to its size at once. Smaller responses lower it slowly.
        """
        estimate = self._estimate * 0.98 + answer_bytes * 0.02
        self._estimate = estimate if estimate > answer_bytes else float(answer_bytes)

    def _grant(self) -> None:
        while self._wanted:
            first = self._wanted[0]
            if self._shards and self._shards + first.size > self._half:
                return
            self._wanted.popleft()
            self._shards += first.size
            first.granted = True
