"""A turn's share of a rate: how far apart its sends are, and after how many it is over."""

import time
from collections.abc import Callable
from typing import Protocol

from batchwright.rules.rates import Pacing

# A send that comes late is made up for by so much at most: timers are late by milliseconds.
_SLACK_SECONDS = 0.02


class Rates(Protocol):
    """The rates in effect, at any moment."""

    def pacing_of(self, model: str) -> Pacing | None:
        """None: the model has no limit."""
        ...

    def queue_of(self, model: str) -> str:
        """The task queue of the model's slices; empty: its own."""
        ...

    async def elsewhere(self, model: str, queue: str) -> str:
        """The task queue on which the model's slices belong, if it is not this one; else empty.

        Told only after the rates were read afresh; as long as they cannot be, every queue is right.
        """
        ...


class NoRates(Rates):
    def pacing_of(self, model: str) -> Pacing | None:
        return None

    def queue_of(self, model: str) -> str:
        return ""

    async def elsewhere(self, model: str, queue: str) -> str:
        return ""


class Pace:
    """Of one turn. `pacing` is asked each time, so that a change reaches turns that run.

    The server limits how many turns start; with a bound on what each sends, that is a bound on all sends.
    """

    def __init__(
        self, pacing: Callable[[], Pacing | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pacing, self._clock = pacing, clock
        self._sends = 0
        self._last = float("-inf")  # when the last send was due, or was made without a rate
        self._asked: Pacing | None = None  # what let the next send go

    @property
    def is_over(self) -> bool:
        """Whether the turn has sent all it may, and the next one has to go on."""
        pacing = self._pacing()
        return pacing is not None and self._sends >= pacing.lines

    @property
    def may_send(self) -> bool:
        self._asked = pacing = self._pacing()
        return pacing is None or (self._sends < pacing.lines and not self._wait(pacing))

    def wait(self) -> float:
        """Seconds until the next send may start."""
        pacing = self._pacing()
        return 0.0 if pacing is None else self._wait(pacing)

    def _wait(self, pacing: Pacing) -> float:
        return max(0.0, self._last + pacing.interval_seconds - self._clock())

    def sent(self) -> None:
        """A send starts, retries included, which `may_send` was asked for."""
        pacing, now = self._asked, self._clock()
        if pacing is None or not self._sends:
            self._last = now
        else:
            self._last = min(now, max(self._last + pacing.interval_seconds, now - _SLACK_SECONDS))
        self._sends += 1
