"""Rate limit per minute of requests or tokens, as one process applies it."""

_SECONDS = 60.0
_BURST_SECONDS = 0.5  # unused capacity is kept for so long: waiting lines are checked every 0.25 s


class MinuteRate:
    """Limit of what may be sent in any 60 seconds.

    The limit is a bucket that fills evenly and holds what half a second brings. A request may be sent while
    the bucket is not empty, whatever it costs, and the cost may make the level negative. So in any 60 seconds
    at most the rate is sent, plus what the last request costs above one unit.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        """Create a limit with a full bucket. `per_minute` may be a fraction, and 0 blocks everything."""
        self._at = now
        self._set(per_minute)
        self._level = self._capacity

    def change(self, per_minute: float, now: float) -> None:
        """Set another rate. The debt of requests that were sent stays, but nothing saved above the rate."""
        self._fill(now)
        self._set(per_minute)
        self._level = min(self._level, self._capacity)

    def may_send(self, now: float) -> bool:
        self._fill(now)
        return self._level > 0 and self._capacity > 0

    def charge(self, cost: float) -> None:
        """Take `cost` from the bucket. A negative cost gives back what was charged too much."""
        self._level -= cost

    def _set(self, per_minute: float) -> None:
        self._capacity = per_minute * _BURST_SECONDS / _SECONDS
        self._per_second = (per_minute - self._capacity) / _SECONDS

    def _fill(self, now: float) -> None:
        if now <= self._at:
            return  # an earlier time must not be remembered: the time since then would count twice
        if self._level < self._capacity:
            self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now
