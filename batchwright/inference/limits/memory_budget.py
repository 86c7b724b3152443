"""Limits the memory that one process uses for input lines, requests and responses.

Input lines are stored in shards. A shard is an object with the lines of one model. A worker fetches the part
of a shard that belongs to one slice, and reserves memory for this part. A response takes memory until it is
stored.
"""

from collections import deque
from dataclasses import dataclass

_INITIAL_ESTIMATE = 64 * 1024  # assumed size of a response until the first one has arrived


@dataclass(eq=False, slots=True)
class Reservation:
    """Memory that is reserved for the lines of one slice, `size` bytes.

    `granted` becomes True when the process has enough free memory within its limit. After that,
    `MemoryBudget.shrink` can reduce `size`.
    """

    size: int
    granted: bool = False


class MemoryBudget:
    """A memory limit of one process: half for shards, the other half for requests and responses.

    A shard is a stored object with input lines. If shards could take all memory, no request could be sent,
    and no memory would become free again. Shards get memory in the order of their reservations, so that small
    shards cannot delay a large shard forever. The size of a response is estimated from recent responses until
    the response arrives.
    """

    def __init__(self, total: int) -> None:
        self._half = total // 2
        self._shards = 0
        self.response_bytes = 0  # bytes of requests and responses; callers change it
        self._estimate = float(_INITIAL_ESTIMATE)
        self._wanted: deque[Reservation] = deque()

    @property
    def held(self) -> int:
        return self._shards + self.response_bytes

    @property
    def waiting(self) -> int:
        """Number of reservations of slices that wait for memory."""
        return len(self._wanted)

    def has_room(self) -> bool:
        """Return True if there is memory for another request.

        The result is also True if no request uses memory now. One request can therefore always be sent.
        """
        return not self.response_bytes or self.response_bytes + self._estimate < self._half

    def reserve(self, size: int) -> Reservation:
        """Request `size` bytes of memory for a slice's lines. Return the reservation, which may have to wait.

        When there is enough memory, `granted` of the reservation becomes True, possibly before this method
        returns. If `size` is more than the whole memory for lines, `granted` becomes True when no other
        reservation is granted. Always call `release` at the end, even if the reservation was never granted.
        """
        reservation = Reservation(size)
        self._wanted.append(reservation)
        self._grant()
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Free the memory of a reservation. If the reservation still waits for memory, it no longer waits."""
        if reservation.granted:
            self._shards -= reservation.size
        else:
            self._wanted.remove(reservation)
        self._grant()

    def shrink(self, reservation: Reservation, size: int) -> None:
        """Reduce the memory of a granted reservation to `size` bytes. The rest of its memory becomes free."""
        self._shards -= reservation.size - size
        reservation.size = size
        self._grant()

    def reserve_response(self, request_bytes: int) -> int:
        """Reserve memory for a request and its estimated response. Return the number of reserved bytes.

        This method adds the number to `response_bytes` of this object. When the memory is no longer used, the
        caller must subtract the number from `response_bytes` again.

        Args:
            request_bytes: size of the request.
        """
        size = request_bytes + int(self._estimate)
        self.response_bytes += size
        return size

    def observe_response(self, answer_bytes: int) -> None:
        """Update the estimated size of responses. `answer_bytes` is the size of a response that has arrived.

        If the response is larger than the estimate, its size is the new estimate. A smaller response lowers
        the estimate by 2 % of the difference.
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
