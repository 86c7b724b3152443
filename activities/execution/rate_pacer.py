"""Limit how many requests one attempt of a slice (turn) sends, and the interval between two requests."""

import math
import time
from collections.abc import Callable

from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.rules.limits.rate_allocation import Pacing

# If a send was late, the next send may be early by at most this much. Timers are late by milliseconds.
_MAX_CATCH_UP_SECONDS = 0.02


class RatePacer:
    """A limit on the requests of one slice attempt (turn): their number, and the interval between two.

    Temporal limits how many turns start per second, and this class limits the requests of each turn.
    Together, they limit the rate of all requests. The limits are looked up before each request, so a changed
    rate also applies to turns that already run.
    """

    def __init__(
        self, rates: EffectiveRates, model: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rates, self._model, self._clock = rates, model, clock
        self._sends = 0
        self._last_due = float("-inf")  # when the last send was due; without a rate, when it was made
        self._checked: Pacing | None = None  # the rate at the last `may_send`

    @property
    def is_exhausted(self) -> bool:
        """True if this attempt of the slice may send no more requests.

        The next attempt sends the remaining lines.
        """
        return not self.remaining()

    def remaining(self) -> float:
        """Return how many more requests this attempt of the slice may send.

        If there is no rate limit, return infinity.
        """
        pacing = self._pacing
        return math.inf if pacing is None else max(0, pacing.lines - self._sends)

    def may_send(self) -> bool:
        """Return True if a request may be sent now.

        This call looks up the current rate and remembers it for the next `record_send`.
        """
        self._checked = pacing = self._pacing
        return pacing is None or (self._sends < pacing.lines and not self._delay(pacing))

    def delay(self) -> float:
        """Return the seconds until the next request may be sent; 0 if it may be sent now."""
        pacing = self._pacing
        return 0.0 if pacing is None else self._delay(pacing)

    @property
    def _pacing(self) -> Pacing | None:
        rates = self._rates.allocation
        return rates.own.get(self._model, rates.shared)

    def _delay(self, pacing: Pacing) -> float:
        return max(0.0, self._last_due + pacing.interval_seconds - self._clock())

    def record_send(self) -> None:
        """Count a request that is sent now, even if it sends a line for the second time.

        Call `may_send` first, because this method uses the rate that `may_send` has looked up.
        """
        pacing, now = self._checked, self._clock()
        if pacing is None or not self._sends:
            self._last_due = now
        else:
            due = self._last_due + pacing.interval_seconds
            self._last_due = min(now, max(due, now - _MAX_CATCH_UP_SECONDS))
        self._sends += 1
