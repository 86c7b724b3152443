"""How many requests a backend gets at once: as many as help it, found from its answers alone.

Refusals and timeouts lower the limit at once, one time for all that were on their way together; refusals
that come whatever is in flight are let be (rules/refusals.py). Everything else is a trial, judged by what it
did to the time of answers: where requests queue, less in flight makes answers quicker by as much and more
makes them slower; where the engine has room, their time stays. So
- slow answers have less tried, and where that does not help, the engine is slow and not crowded: back again;
- from time to time less is tried without a reason: it may have been crowded from the start;
- more is tried while all there is gets used, in ever larger steps as long as it helps.
"""

import math
from collections.abc import Hashable

from batchwright.rules.load import Bounds, Change, Signal, Trial, Window
from batchwright.rules.refusals import Congestion, Refusals
from batchwright.rules.slowness import Slowness

SHORTEST_WINDOW, LONGEST_WINDOW = 0.25, 2.0  # seconds
LESS_TRIED_EVERY, MORE_TRIED_EVERY = 30.0, 2.0  # seconds at least; doubling where it was in vain
SENSIBLE_SECONDS = 0.1  # answers quicker than that are never called slow
_LONGEST_PAUSE = 480.0
_SETTLE = 1.25  # times an answer's time, before a trial shows in the answers
_ANSWERS, _TRIAL_ANSWERS, _MOST_ANSWERS = 8, 24, 96  # that make a level
_QUEUED, _CLEAR = 0.5, 0.25  # share of the time that goes with the requests in flight: the border, its width
_AFTER_TIMEOUT, _LESS, _LEAST = 0.5, 0.7, 0.5
_MORE, _MUCH_MORE, _MOST_MORE = 1.25, 1.6, 2.0
_FORGET = 0.98  # of the best limit so far, with each look beyond in vain
_FUTILE = 2  # times less was tried in vain after which the engine is slow
_WORSE = 0.15  # of a level that rises: what made it slow is not over yet
_NEAR, _USED = 0.9, 0.9
_WORTH_TRYING = 4  # in flight


class InFlightLimit:
    """Of one backend. Seconds are the caller's clock; it reads none and does no I/O."""

    def __init__(self, bounds: Bounds, now: float) -> None:
        self.bounds = bounds
        self.current = bounds.ceiling  # how many may be in flight; asked several times a request
        self._limit = self._target = self._good = self._best = float(bounds.ceiling)
        self._slowness, self._refusals, self._congestion = Slowness(), Refusals(), Congestion()
        self._seconds = 0.0  # about how long an answer takes
        self._lowered_at = -math.inf
        self._settled_at = now
        self._trial: Trial | None = None
        self._factor = _MORE
        self._less_pause = LESS_TRIED_EVERY
        self._less_at, self._more_at = now + LESS_TRIED_EVERY / 3, now
        self._window, self._before = Window(now), Window(now)

    def ended(
        self,
        signal: Signal,
        *,
        sent_at: float,
        now: float,
        in_flight: int,
        among: int,
        kind: Hashable = None,
    ) -> Change | None:
        """One request is over, and what changed by it, if anything.

        `in_flight` counts it still; it was sent `among` so many, itself included. `kind` is what makes its
        time comparable.
        """
        window = self._window
        if in_flight > window.peak:
            window.peak = in_flight
        if signal is Signal.NOTHING:
            return None
        if signal is not Signal.TIMED_OUT:
            self._refusals.sample(among, refused=signal is Signal.REFUSED)
        if signal is not Signal.ANSWERED:
            lower = self._timed_out if signal is Signal.TIMED_OUT else self._refused
            return lower(sent_at, now)
        seconds = now - sent_at
        if not self._seconds:
            self._seconds = seconds
            self._settle(now)
        self._seconds += 0.1 * (seconds - self._seconds)
        if self._limit < self._target:
            return self._approach(now)
        window = self._window
        if now < self._settled_at:
            window.peak = 0
            return None
        window.answers += 1
        window.levels += self._slowness.sample(kind, seconds)
        age = now - window.since
        return self._look(now) if age >= SHORTEST_WINDOW and age >= self._span() else None

    def _span(self) -> float:
        return min(max(self._seconds, SHORTEST_WINDOW), LONGEST_WINDOW)

    def _refused(self, sent_at: float, now: float) -> Change | None:
        if self._refusals.are_usual():
            return None
        if before := self._refusals.in_vain():
            return self._refused_in_vain(before, now)
        congestion = self._congestion
        lower = congestion.lowered(self._used(), sent_at=sent_at, now=now, span=self._span())
        if self._held(lower) >= self._limit:
            return None  # at its floor it goes on looking for room
        if congestion.is_slight:
            self._target = self._held(lower)
            self._become(self._target)
            return Change.REFUSED
        return self._lower(lower, congestion.used, now, Change.REFUSED)

    def _timed_out(self, sent_at: float, now: float) -> Change | None:
        """What was sent before the limit was lowered has been answered for by that."""
        if sent_at < self._lowered_at or now - self._lowered_at < self._span():
            return None
        used = self._used()
        return self._lower(used * _AFTER_TIMEOUT, used, now, Change.TIMED_OUT)

    def _lower(self, lower: float, used: float, now: float, change: Change) -> Change:
        trial = self._trial
        if trial is not None and trial.change is Change.MORE_TRIED:
            lower = min(max(lower, trial.limit), used * _NEAR)  # where all was well a moment ago
        self._good = (used + lower) / 2
        self._lowered_at, self._trial = now, None
        self._pause_more(now)
        return self._set(lower, now, change)

    def _refused_in_vain(self, before: int, now: float) -> Change | None:
        self._trial = None
        self._good = max(self._good, min(float(before), self.bounds.ceiling))
        if before <= self._limit:
            return None
        return self._set(before, now, Change.TRIED_IN_VAIN)

    def _look(self, now: float) -> Change | None:
        """A window is over."""
        window, trial = self._window, self._trial
        enough = _TRIAL_ANSWERS if trial else min(max(_ANSWERS, self._limit / 2), _TRIAL_ANSWERS)
        if window.answers < enough:
            return None
        if trial is not None:
            return self._judge(trial, now)
        self._slowness.take(window.level)
        change = self._try_less(now) or self._grow(now)
        if change is None:
            self._remember()
            self._window = Window(now)
        return change

    def _remember(self) -> None:
        """Adds the window to what is known of the time before a trial."""
        self._before.answers = self._before.answers * _NEAR + self._window.answers
        self._before.levels = self._before.levels * _NEAR + self._window.levels

    def _try_less(self, now: float) -> Change | None:
        if self._seconds < SENSIBLE_SECONDS or self._window.peak < _WORTH_TRYING:
            return None
        slower = self._slowness.times(self._window.level)
        if slower > self.bounds.tolerance:
            less = min(max(1 / slower, _LEAST), _LESS)  # what would be there without a queue
            return self._try(self._used() * less, self._window.level, now, Change.SLOW)
        if now < self._less_at:
            return None
        self._remember()
        return self._try(self._used() * _LESS, self._before.level, now, Change.LESS_TRIED)

    def _grow(self, now: float) -> Change | None:
        if self._limit >= self.bounds.ceiling or self._window.peak < _USED * self.current:
            return None
        if self._limit < self._good * _NEAR:
            return self._set(self._limit + max(1.0, (self._good - self._limit) / 2), now, Change.RECOVERED)
        if now < self._more_at:
            return None
        self._remember()
        more = max(self._limit * self._factor, self._limit + 1)
        return self._try(more, self._before.level, now, Change.MORE_TRIED)

    def _try(self, limit: float, level: float, now: float, change: Change) -> Change:
        self._trial = Trial(self._limit, self._used(), level, change)
        return self._set(limit, now, change)

    def _judge(self, trial: Trial, now: float) -> Change | None:
        window = self._window
        ratio = math.log(max(window.peak, 1) / trial.used)
        if abs(ratio) < 0.05 and self.current > 1:
            return self._end(now)  # as many in flight as before: nothing was tried
        share = (window.level - trial.level) / ratio if ratio else 1.0
        if abs(share - _QUEUED) < _CLEAR and window.answers < _MOST_ANSWERS:
            return None  # not clear yet
        self._slowness.take(window.level)
        queued = share >= _QUEUED and self._seconds >= SENSIBLE_SECONDS
        if trial.change is Change.MORE_TRIED:
            return self._back(trial, now) if queued else self._go_on(now)
        return self._keep(trial, now) if queued else self._less_in_vain(trial, now)

    def _go_on(self, now: float) -> None:
        """More helped: it stays, and still more may be tried at once."""
        self._good, self._factor = self._limit, min(self._factor * _MORE, _MOST_MORE)
        self._less_pause = LESS_TRIED_EVERY
        self._end(now)
        self._more_at = now

    def _back(self, trial: Trial, now: float) -> Change:
        """More did not help."""
        self._good = trial.limit
        self._pause_more(now)
        self._end(now)
        return self._set(trial.limit, now, Change.TRIED_IN_VAIN)

    def _keep(self, trial: Trial, now: float) -> Change | None:
        """Less lost nothing: it stays, and still less is tried while it may be too much."""
        self._good, self._less_pause = self._limit, LESS_TRIED_EVERY
        level = self._window.level
        crowded = self._slowness.times(level) > self.bounds.tolerance
        if (crowded or trial.change is Change.LESS_TRIED) and self._used() >= _WORTH_TRYING:
            return self._try(self._used() * _LESS, level, now, trial.change)
        self._pause_more(now)
        return self._end(now)

    def _less_in_vain(self, trial: Trial, now: float) -> Change:
        level, slow = self._window.level, trial.change is Change.SLOW
        trial.in_vain += 1
        if slow and trial.in_vain < _FUTILE and self._limit > self.bounds.floor:
            if level > trial.level + _WORSE:
                trial.level, trial.used = level, self._used()
            return self._set(self._used() * _LESS, now, Change.SLOW)
        if slow:
            self._slowness.accept(trial.level)
        self._less_pause = min(self._less_pause * 2, _LONGEST_PAUSE)
        self._good = trial.limit
        self._end(now)
        return self._set(trial.limit, now, Change.TRIED_IN_VAIN)

    def _end(self, now: float) -> None:
        self._trial = None
        self._less_at = now + max(self._less_pause, 20 * self._seconds)
        self._window, self._before = Window(now), Window(now)

    def _pause_more(self, now: float) -> None:
        self._best = max(self._good, self._best * _FORGET)
        self._factor = _MUCH_MORE if self._good < self._best / 2 else _MORE
        self._more_at = now + max(MORE_TRIED_EVERY, 5 * self._span())

    def _used(self) -> float:
        """Of a limit that was not reached, what was in flight."""
        return max(1.0, min(self._limit, self._window.peak or self._limit))

    def _set(self, limit: float, now: float, change: Change) -> Change:
        """At once, but for what is new: that comes with the next answers, for a burst would tell nothing."""
        self._target = self._held(limit)
        if change is Change.TRIED_IN_VAIN or self._target < self._limit:
            self._become(self._target)
        self._settle(now)
        return change

    def _approach(self, now: float) -> None:
        """With as many answers as there were requests it is there; no answer of that time is judged."""
        self._become(min(self._limit + max(self._target / self._limit - 1, 0.1), self._target))
        self._settle(now)

    def _settle(self, now: float) -> None:
        recovering = self._trial is None and self._limit < self._good * _NEAR
        self._settled_at = now if recovering else now + _SETTLE * self._seconds
        self._slowness.forget()
        self._window, self._before = Window(self._settled_at), Window(self._settled_at)

    def _become(self, limit: float) -> None:
        self._limit = limit
        self.current = int(self._held(limit))

    def _held(self, limit: float) -> float:
        return min(max(limit, float(self.bounds.floor)), float(self.bounds.ceiling))
