"""Limit how many requests or tokens one process may send per minute."""

_SECONDS = 60.0
_BURST_SECONDS = 0.5  # unused capacity is kept for this time; waiting lines are checked every 0.25 s


class PerMinuteLimit:
    """The limit of the requests or tokens that may be sent in any 60 seconds.

    The limit works like a bucket that fills evenly. A request may be sent while the bucket is not empty. The
    request takes its cost (1 request, or its tokens) out of the bucket, whose content may become negative.

    A full bucket holds half a second of the limit. It fills a little more slowly than the limit, so that a
    full bucket and 60 seconds of filling add up to exactly the limit. Only the last request of these 60
    seconds can exceed it, by less than its cost.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        """Create a limit whose bucket of allowed requests or tokens is full.

        Args:
            per_minute: requests or tokens per minute. The number may have a fraction; 0 blocks everything.
            now: the current time in seconds.
        """
        self._at = now
        self._set(per_minute)
        self._level = self._capacity

    def change(self, per_minute: float, now: float) -> None:
        """Set another limit, in requests or tokens per minute.

        What may be sent immediately (the content of the bucket) stays the same, but is reduced to half a
        second of the new limit if it is more.
        """
        self._fill(now)
        self._set(per_minute)
        self._level = min(self._level, self._capacity)

    def may_send(self, now: float) -> bool:
        self._fill(now)
        return self._level > 0 and self._capacity > 0

    def charge(self, cost: float) -> None:
        """Count `cost` (requests or tokens) as sent. A negative cost gives back what was counted too much."""
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
