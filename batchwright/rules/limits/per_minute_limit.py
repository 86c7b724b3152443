"""Limit how many requests or tokens one process may send per minute."""

_SECONDS = 60.0
_BURST_SECONDS = 0.5  # unused capacity is kept for this time; waiting lines are checked every 0.25 s


class PerMinuteLimit:
    """The limit of the requests or tokens that may be sent in any 60 seconds.

    The limit works like a bucket that is filled at a constant rate. If the bucket is not empty, a request may
    be sent. The request takes its cost (1 request, or its tokens) out of the bucket. The content of the
    bucket may become negative.

    A full bucket holds the number of requests or tokens that the limit allows in half a second. A full bucket
    and 60 seconds of filling add up to exactly the limit. So only the last request in 60 seconds can exceed
    the limit, by less than the cost of this request.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        """Create a limit whose bucket of allowed requests or tokens is full.

        Args:
            per_minute: requests or tokens per minute. The number need not be whole; 0 blocks everything.
            now: the current time in seconds.
        """
        self._at = now
        self._set(per_minute)
        self._level = self._capacity

    def change(self, per_minute: float, now: float) -> None:
        """Set another limit, in requests or tokens per minute.

        The requests or tokens in the bucket may still be sent. If they are more than the new limit allows in
        half a second, their number is reduced to that.
        """
        self._fill(now)
        self._set(per_minute)
        self._level = min(self._level, self._capacity)

    def may_send(self, now: float) -> bool:
        self._fill(now)
        return self._level > 0 and self._capacity > 0

    def charge(self, cost: float) -> None:
        """Count `cost` (requests or tokens) as sent. A negative `cost` corrects an earlier, too high cost."""
        self._level -= cost

    def _set(self, per_minute: float) -> None:
        self._capacity = per_minute * _BURST_SECONDS / _SECONDS
        self._per_second = (per_minute - self._capacity) / _SECONDS

    def _fill(self, now: float) -> None:
        if now <= self._at:
            return  # keep the later time; otherwise the time between would count twice
        if self._level < self._capacity:
            self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now
