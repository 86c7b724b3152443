"""Adaptive concurrency limit: how many requests a backend gets at once, derived only from its responses.

Rejections and timeouts lower the limit immediately, but only once for all requests that were in flight
together. If a backend rejects requests at any concurrency, its rejections do not lower the limit
(`backend_load.py`). Every other change is a trial. Its effect on response times decides if it is kept. If
requests queue in the backend, fewer requests in flight make responses faster, and more requests make them
slower. If the backend has room, response times stay the same.

There are three kinds of trial:

- After slow responses, the limit is lowered. If that does not help, the backend is slow but not crowded, and
  the limit is restored.
- From time to time, the limit is lowered without a reason, because the backend may have been crowded from the
  start.
- While the whole limit is used, the limit is raised, in growing steps as long as that helps.

Only responses of a steady load are measured. When a batch ends, its longest responses come last, and when the
next one begins, its shortest come first: neither shows how busy the backend is.

A backend may serve other callers first, and refuse requests while they use its slots (`LoadSignal.BUSY`).
Such a refusal is no overload. It starts a second limit, which follows the free slots (`FreeSlots`).
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from batchwright.rules.limits.backend_load import (
    TRIAL_RESPONSES,
    CongestionWindow,
    FreeSlots,
    LoadSignal,
    MeasurementWindow,
    RejectionHistory,
    ResponseMeter,
)

DECREASE_PROBE_SECONDS, INCREASE_PROBE_SECONDS = 30.0, 2.0  # minimum; failed decreases double the first
NEVER_SLOW_SECONDS = 0.1  # faster responses never count as slow
_MAX_PAUSE_SECONDS = 480.0
_WINDOW_RESPONSES = 8  # minimum number of responses for measuring a level
_BEYOND_CHANCE = 5.0  # standard errors above the baseline at which a single window is enough proof
_PROBE_COST = 0.025  # fraction of the capacity that decreases without a reason may cost
_CHEAP_PROBE_SECONDS = 1.8  # a decrease that costs less full capacity than this is always allowed
# Requests queue in the backend if response times follow a changed concurrency by more than this fraction.
# Within the width around the fraction, the result is unclear.
_QUEUED_SHARE, _UNCLEAR_WIDTH = 0.5, 0.25
_TIMEOUT_FACTOR, _DECREASE_FACTOR, _MIN_DECREASE_FACTOR = 0.5, 0.7, 0.5
_DECREASE_EFFECT = -_QUEUED_SHARE * math.log(_DECREASE_FACTOR)  # least effect of a decrease on the level
_INCREASE_FACTOR, _FAST_INCREASE_FACTOR, _MAX_INCREASE_FACTOR = 1.25, 1.6, 2.0
_BEST_LIMIT_DECAY = 0.98  # applied to the best limit so far after each failed increase
_MAX_FAILED_DECREASES = 2  # after so many the backend counts as slow, not crowded
_STILL_RISING = 0.15  # if the level rises by more during a trial, the slowdown is still growing
_RECOVERY_THRESHOLD = 0.9  # below this fraction of the last good limit, the limit recovers without a trial
_UTILIZATION_THRESHOLD = 0.9  # fraction of the current limit that must be used before the limit is raised
_MIN_PROBED_IN_FLIGHT = 4
# The load is steady if it is at least this fraction of what it was, minus the difference that chance makes.
_STEADY_LOAD, _CHANCE_DIFFERENCE = 0.75, 2


class LimitChange(StrEnum):
    """Reasons why the adaptive limit of a backend has changed."""

    REJECTED = "rejected"
    BUSY = "busy"  # direct callers use the slots of the backend
    TIMED_OUT = "timed_out"
    SLOW = "slow"
    DECREASE_PROBE = "decrease_probe"
    INCREASE_PROBE = "increase_probe"
    PROBE_REVERTED = "probe_reverted"  # restored after a trial without benefit
    RECOVERED = "recovered"  # on the way back to the last good limit


@dataclass(frozen=True, slots=True)
class LimitBounds:
    """Bounds of an adaptive limit, in requests in flight, and its tolerance of slow responses.

    If responses take more than `tolerance` times as long as usual, the limit is lowered as a trial.
    """

    floor: int = 1
    ceiling: int = 100
    tolerance: float = 1.5


@dataclass(slots=True)
class LimitTrial:
    """A recent change of the limit that is still being tested, and the state before this change.

    Attributes:
        limit: the limit before the change.
        used: number of requests in flight before the change.
        level: mean latency level before the change. A latency level is the logarithm of seconds.
        failures: how many decreases of the limit in this trial did not help.
    """

    limit: float
    used: float
    level: float
    change: LimitChange
    failures: int = 0


class AdaptiveLimit:
    """Adapts the limit of requests in flight to one backend. `current` is the limit.

    Call `on_complete` at the end of each request. All times are seconds of a clock that the caller reads.
    """

    def __init__(self, bounds: LimitBounds, now: float) -> None:
        self.bounds = bounds
        self.current = bounds.ceiling  # maximum number of requests in flight
        self._limit = self._target = self._good_limit = self._best_limit = float(bounds.ceiling)
        self._meter = ResponseMeter(now)
        self._rejections, self._congestion = RejectionHistory(), CongestionWindow()
        self._free_slots = FreeSlots()
        self._suspected = False  # True if the last window was slow, and the next one has to confirm it
        self._probed_at = now  # end of the last change that was measured, or the start
        self._lowered_at = -math.inf
        self._load_fell = False  # True if fewer requests were in flight at the last response than before
        self._trial: LimitTrial | None = None
        self._increase_factor = _INCREASE_FACTOR
        self._decrease_pause = DECREASE_PROBE_SECONDS
        self._next_decrease_at, self._next_increase_at = now + DECREASE_PROBE_SECONDS / 3, now

    def on_complete(
        self,
        signal: LoadSignal,
        *,
        sent_at: float,
        now: float,
        in_flight: int,
        in_flight_when_sent: int,
        kind: Hashable = None,
    ) -> LimitChange | None:
        """Record the end of a request, and adapt the limit. Return why it changed; None if it did not change.

        Args:
            signal: what the end of the request shows about the backend's load.
            sent_at: when the request was sent.
            now: the current time.
            in_flight: number of requests in flight now, including this request.
            in_flight_when_sent: number of requests in flight when this request was sent, including this
                request.
            kind: group of requests whose response times are compared, such as one model and response length.
        """
        meter = self._meter
        if in_flight > meter.window.peak:
            meter.window.peak = in_flight
        if meter.noise is None:
            has_response = signal is LoadSignal.RESPONDED
            meter.record_early_end(in_flight, sent_at, now, has_response=has_response)
        if signal is LoadSignal.NEUTRAL:
            return None
        if signal is LoadSignal.ANSWERED:
            self._raise_to_free_slots(now)
            return None
        if signal is LoadSignal.BUSY:
            self._free_slots.record_refusal(in_flight, now)
            self._apply(self._limit)
            return LimitChange.BUSY
        if signal is not LoadSignal.TIMED_OUT:
            self._rejections.record(in_flight_when_sent, rejected=signal is LoadSignal.REJECTED)
        if signal is not LoadSignal.RESPONDED:
            timed_out = signal is LoadSignal.TIMED_OUT
            return self._on_timeout(sent_at, now) if timed_out else self._on_rejected(sent_at, now)
        has_fallen = in_flight < _STEADY_LOAD * min(in_flight_when_sent, self.current) - _CHANCE_DIFFERENCE
        return self._on_response(now - sent_at, now, kind, has_fallen=has_fallen)

    def _on_response(
        self, seconds: float, now: float, kind: Hashable, *, has_fallen: bool
    ) -> LimitChange | None:
        """Measure a response that took `seconds`.

        Args:
            has_fallen: True if far fewer requests are in flight than when the request was sent, and a lower
                limit does not explain it.
        """
        meter = self._meter
        if not meter.response_seconds:
            meter.response_seconds = seconds
            self._settle(now)
        meter.response_seconds += 0.1 * (seconds - meter.response_seconds)
        self._raise_to_free_slots(now)
        if self._limit < self._target:
            # One step for each response, so that the target is reached after about one response per request
            # in flight. Responses until then are not measured.
            self._apply(min(self._limit + max(self._target / self._limit - 1, 0.1), self._target))
            self._settle(now)
            return None
        if has_fallen:
            return self._on_fallen_load(now)
        if self._load_fell:  # it is steady or rises again; the short responses of a new load end first
            self._load_fell = False
            self._settle(now)
            return None
        return self._evaluate_window(now) if meter.record(kind, seconds, now) else None

    def _on_fallen_load(self, now: float) -> LimitChange | None:
        """Ignore responses until the load is steady again. Undo a decrease that is still being tested.

        While fewer and fewer requests are in flight, for example because a batch ends, the remaining
        responses are the longest ones. They do not show that the backend is slow. If the decrease stayed, the
        next batch would start with a limit that is too low. Return the reason if the limit changed.
        """
        trial, self._load_fell = self._trial, True
        if trial is None or trial.change is LimitChange.INCREASE_PROBE:
            self._settle(now)
            return None
        self._good_limit = trial.limit
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def search_free_slot(self, now: float) -> None:
        """Raise the limit by one, to find out if the backend has a free slot.

        The limit is raised only if the backend has refused requests because of other clients, and has not
        answered for a long time. Call this regularly while the whole limit is used.
        """
        slots = self._free_slots
        if slots.limit < self.bounds.ceiling and slots.search(now, self._meter.response_seconds):
            self._apply(self._limit)

    def _raise_to_free_slots(self, now: float) -> None:
        """Raise the limit after a response, if the backend has refused requests before.

        It refuses requests while other clients use its slots. A response shows that a slot is free again.
        """
        if self._free_slots.limit < math.inf:
            self._free_slots.record_response(now, self._meter.response_seconds)
            self._apply(self._limit)

    def on_aborted(self, sent_at: float, now: float) -> None:
        """Record the end of a request that has no outcome, for example because it was cancelled."""
        self._meter.record_early_end(0, sent_at, now, has_response=False)

    def _on_rejected(self, sent_at: float, now: float) -> LimitChange | None:
        if self._rejections.is_usual():
            return None
        if before := self._rejections.ineffective_decrease_from():
            self._trial = None
            self._good_limit = max(self._good_limit, min(float(before), self.bounds.ceiling))
            if before <= self._limit:
                return None
            return self._set_target(before, now, LimitChange.PROBE_REVERTED)
        congestion = self._congestion
        lower = congestion.record_rejection(
            self._used(), sent_at=sent_at, now=now, span=self._meter.window_seconds
        )
        if self._clamped(lower) >= self._limit:
            return None  # the limit is at its minimum, and increases must stay possible
        if congestion.is_slight:
            self._target = self._clamped(lower)
            self._apply(self._target)
            return LimitChange.REJECTED
        return self._lower(lower, congestion.used, now, LimitChange.REJECTED)

    def _on_timeout(self, sent_at: float, now: float) -> LimitChange | None:
        """Lower the limit after a timeout.

        Return the reason of the change, or None if the limit stays the same. The limit stays the same if the
        request was sent before the last decrease, or if the last decrease was less than one window ago. In
        both cases, the last decrease may have been enough.
        """
        if sent_at < self._lowered_at or now - self._lowered_at < self._meter.window_seconds:
            return None
        used = self._used()
        return self._lower(used * _TIMEOUT_FACTOR, used, now, LimitChange.TIMED_OUT)

    def _lower(self, lower: float, used: float, now: float, change: LimitChange) -> LimitChange:
        trial = self._trial
        if trial is not None and trial.change is LimitChange.INCREASE_PROBE:
            # The result is not below the limit that worked before the trial.
            lower = min(max(lower, trial.limit), used * _RECOVERY_THRESHOLD)
        self._good_limit = (used + lower) / 2
        self._lowered_at, self._trial = now, None
        self._pause_increases(now)
        return self._set_target(lower, now, change)

    def _evaluate_window(self, now: float) -> LimitChange | None:
        """Change the limit if the responses of the current window show that a change is useful.

        Return the reason of the change. Return None if the limit did not change, for example because there
        are not enough responses yet.
        """
        meter, window, trial = self._meter, self._meter.window, self._trial
        if trial is not None:
            enough = meter.responses_to_see(self._effect(trial))
        elif self._suspected or (meter.noise is not None and meter.baseline.baseline is None):
            enough = meter.responses_to_see(_DECREASE_EFFECT)
        else:  # with fewer responses, a slow backend could not be distinguished from chance
            enough = min(max(_WINDOW_RESPONSES, self._limit / 2), TRIAL_RESPONSES)
            enough = max(enough, meter.responses_to_tell(math.log(self.bounds.tolerance)))
        if window.responses < enough or (meter.noise is None and not meter.first_requests_have_ended(now)):
            return None
        if meter.update_noise() is None:
            self._settle(now)
            return None
        if trial is not None:
            return self._judge_trial(trial, now)
        meter.baseline.end_window(window.level, meter.error)
        self._suspected = False
        change = self._try_decrease(now) or self._try_increase(now)
        if change is None:
            meter.add_to_history()
            meter.window = MeasurementWindow(now)
        return change

    def _change(self, trial: LimitTrial) -> float:
        return math.log(max(self._meter.window.peak, 1) / trial.used)

    def _effect(self, trial: LimitTrial) -> float:
        """Return the smallest change of the latency level in this trial that shows a queue in the backend.

        If requests queue in the backend, a change of the limit changes the latency level by at least this
        much.
        """
        return _QUEUED_SHARE * abs(self._change(trial)) or _DECREASE_EFFECT

    def _may_probe(self, now: float) -> bool:
        """Return True if the limit may now be lowered as a probe.

        A probe lowers the limit without any sign of overload, to see if responses get faster. If they do not,
        throughput was lost. A probe is allowed if this loss, in seconds of full throughput, meets one of two
        conditions:

        - It is at most `_CHEAP_PROBE_SECONDS`.
        - It is at most the fraction `_PROBE_COST` of the time since the last measured change.
        """
        meter = self._meter
        rate = meter.window.responses / max(now - meter.window.since, 1e-6)
        seconds = meter.responses_to_see(_DECREASE_EFFECT) / (rate * _DECREASE_FACTOR) + meter.settle_seconds
        cost = (1 - _DECREASE_FACTOR) * seconds
        return cost <= _CHEAP_PROBE_SECONDS or cost <= _PROBE_COST * (now - self._probed_at)

    def _try_decrease(self, now: float) -> LimitChange | None:
        meter, window = self._meter, self._meter.window
        if meter.response_seconds < NEVER_SLOW_SECONDS or window.peak < _MIN_PROBED_IN_FLIGHT:
            return None
        slower = meter.baseline.slowdown(window.level)
        if slower > self.bounds.tolerance:
            excess = window.level - (meter.baseline.baseline or 0.0)
            is_certain = excess > _BEYOND_CHANCE * meter.error
            if window.responses < meter.responses_to_see(_DECREASE_EFFECT) and not is_certain:
                self._suspected = True  # the next window will have enough responses for a comparison
                return None
            # If the backend is crowded: the fraction of the requests in flight that do not queue in it.
            factor = min(max(1 / slower, _MIN_DECREASE_FACTOR), _DECREASE_FACTOR)
            return self._start_trial(self._used() * factor, window.level, now, LimitChange.SLOW)
        if now < self._next_decrease_at or not self._may_probe(now):
            return None
        meter.add_to_history()
        lower = self._used() * _DECREASE_FACTOR
        return self._start_trial(lower, meter.history.level, now, LimitChange.DECREASE_PROBE)

    def _try_increase(self, now: float) -> LimitChange | None:
        is_used = self._meter.window.peak >= _UTILIZATION_THRESHOLD * self.current
        if self._limit >= self.bounds.ceiling or not is_used:
            return None
        if self._limit < self._good_limit * _RECOVERY_THRESHOLD:
            higher = self._limit + max(1.0, (self._good_limit - self._limit) / 2)
            return self._set_target(higher, now, LimitChange.RECOVERED)
        if now < self._next_increase_at:
            return None
        self._meter.add_to_history()
        higher = max(self._limit * self._increase_factor, self._limit + 1)
        return self._start_trial(higher, self._meter.history.level, now, LimitChange.INCREASE_PROBE)

    def _start_trial(self, limit: float, level: float, now: float, change: LimitChange) -> LimitChange:
        self._trial = LimitTrial(self._limit, self._used(), level, change)
        return self._set_target(limit, now, change)

    def _judge_trial(self, trial: LimitTrial, now: float) -> LimitChange | None:
        meter, window = self._meter, self._meter.window
        ratio = self._change(trial)
        if abs(ratio) < 0.05 and self.current > 1:
            return self._end_trial(now)  # no effect: as many requests are in flight as before
        share = (window.level - trial.level) / ratio if ratio else 1.0
        is_unclear = abs(share - _QUEUED_SHARE) < _UNCLEAR_WIDTH
        if is_unclear and window.responses < 2 * meter.responses_to_see(self._effect(trial)):
            return None
        self._meter.baseline.end_window(window.level, self._meter.error)
        queued = share >= _QUEUED_SHARE and self._meter.response_seconds >= NEVER_SLOW_SECONDS
        if trial.change is LimitChange.INCREASE_PROBE:
            return self._undo_increase(trial, now) if queued else self._keep_increase(now)
        return self._keep_decrease(trial, now) if queued else self._undo_decrease(trial, now)

    def _keep_increase(self, now: float) -> None:
        """Keep the increased limit, because the additional requests did not queue in the backend.

        The next increase may follow at once.
        """
        self._good_limit = self._limit
        self._increase_factor = min(self._increase_factor * _INCREASE_FACTOR, _MAX_INCREASE_FACTOR)
        self._decrease_pause = DECREASE_PROBE_SECONDS
        self._end_trial(now)
        self._next_increase_at = now

    def _undo_increase(self, trial: LimitTrial, now: float) -> LimitChange:
        """Restore the limit from before an increase, and return the reason.

        The trial has shown that the additional requests only waited in the backend's queue.
        """
        self._good_limit = trial.limit
        self._pause_increases(now)
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def _keep_decrease(self, trial: LimitTrial, now: float) -> LimitChange | None:
        """Keep a decrease of the limit that made responses faster.

        It showed that requests had queued in the backend. If responses are still slow, or if the decrease was
        a probe, requests may still queue. Then decrease the limit again and return the reason. End the trial
        and return None in all other cases, and also if too few requests are in flight for another decrease.
        """
        self._good_limit, self._decrease_pause = self._limit, DECREASE_PROBE_SECONDS
        level = self._meter.window.level
        crowded = self._meter.baseline.slowdown(level) > self.bounds.tolerance
        if (crowded or trial.change is LimitChange.DECREASE_PROBE) and self._used() >= _MIN_PROBED_IN_FLIGHT:
            return self._start_trial(self._used() * _DECREASE_FACTOR, level, now, trial.change)
        self._pause_increases(now)
        return self._end_trial(now)

    def _undo_decrease(self, trial: LimitTrial, now: float) -> LimitChange:
        """React to a decrease of the limit that did not make responses faster.

        Change the limit and return the reason. If the decrease was a probe, restore the limit from before the
        trial.

        If the decrease was a reaction to slow responses, this method can be called twice in a trial:

        - The first call decreases the limit once more. If the limit is at its minimum, it acts like the
          second call.
        - The second call restores the limit from before the trial, and makes the slow latency the baseline.
          The backend is slow but not crowded.
        """
        level, slow = self._meter.window.level, trial.change is LimitChange.SLOW
        trial.failures += 1
        if slow and trial.failures < _MAX_FAILED_DECREASES and self._limit > self.bounds.floor:
            if level > trial.level + _STILL_RISING:
                trial.level, trial.used = level, self._used()
            return self._set_target(self._used() * _DECREASE_FACTOR, now, LimitChange.SLOW)
        if slow:
            self._meter.baseline.rebase(trial.level)
        self._decrease_pause = min(self._decrease_pause * 2, _MAX_PAUSE_SECONDS)
        self._good_limit = trial.limit
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def _end_trial(self, now: float) -> None:
        self._trial, self._probed_at = None, now
        self._next_decrease_at = now + max(self._decrease_pause, 20 * self._meter.response_seconds)
        self._meter.start_windows(now)

    def _pause_increases(self, now: float) -> None:
        self._best_limit = max(self._good_limit, self._best_limit * _BEST_LIMIT_DECAY)
        far_below = self._good_limit < self._best_limit / 2
        self._increase_factor = _FAST_INCREASE_FACTOR if far_below else _INCREASE_FACTOR
        self._next_increase_at = now + max(INCREASE_PROBE_SECONDS, 5 * self._meter.window_seconds)

    def _used(self) -> float:
        """Return how much of the limit was used: the highest number of requests in flight in this window.

        The result is at most the limit. If the number is not known, return the limit.
        """
        return max(1.0, min(self._limit, self._meter.window.peak or self._limit))

    def _set_target(self, limit: float, now: float, change: LimitChange) -> LimitChange:
        """Set a new target for the limit. Return `change`.

        A decrease or a restored limit takes effect at once. An increase takes effect step by step, to avoid a
        burst of requests.
        """
        self._target = self._clamped(limit)
        if change is LimitChange.PROBE_REVERTED or self._target < self._limit:
            self._apply(self._target)
        self._settle(now)
        return change

    def _settle(self, now: float) -> None:
        recovering = self._trial is None and self._limit < self._good_limit * _RECOVERY_THRESHOLD
        self._meter.pause_until(now if recovering else now + self._meter.settle_seconds)

    def _apply(self, limit: float) -> None:
        self._limit = limit
        self.current = int(min(self._clamped(limit), self._free_slots.limit))

    def _clamped(self, limit: float) -> float:
        return min(max(limit, float(self.bounds.floor)), float(self.bounds.ceiling))
