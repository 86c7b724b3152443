"""Adaptive concurrency limit: how many requests a backend gets at once, derived only from its responses.

Rejections and timeouts lower the limit immediately. Rejections of requests that were in flight together lower
the limit by at most 30 %. If a backend rejects about the same fraction of requests at any concurrency,
rejections do not lower the limit (`backend_load.py`). After rejections, responses raise the limit again, up
to its earlier value. Most other changes are trials: later responses decide whether a change is kept or undone
(`limit_trial.py`).

Responses are measured only while the load is steady. At the end of a batch, only long responses are left. At
the start of a batch, short responses arrive first. Such responses do not show how busy the backend is.

A slot is a backend's capacity for one request. Some backends serve other callers first. If other callers use
all slots, the backend refuses requests (`LoadSignal.BUSY`). Such a refusal does not show overload, but sets a
second limit: the number of slots that are free for Batchwright (`FreeSlots`).
"""

import math
from collections.abc import Hashable

from batchwright.rules.limits.backend_load import (
    CongestionWindow,
    FreeSlots,
    LoadSignal,
    Regrowth,
    RejectionHistory,
)
from batchwright.rules.limits.limit_trial import (
    DECREASE_EFFECT,
    DECREASE_FACTOR,
    NEVER_SLOW_SECONDS,
    LimitBounds,
    LimitChange,
    LimitTrial,
    TrialResult,
    TrialSchedule,
    slow_factor,
)
from batchwright.rules.limits.response_meter import MeasurementWindow, ResponseMeter

_HICCUP_SECONDS = 1.5  # a slowdown of less time may come from the worker's own busy CPU
_TIMEOUT_FACTOR = 0.5
_MAX_FAILED_DECREASES = 2  # after so many the backend counts as slow, not crowded
_STILL_RISING = 0.15  # if the level rises by more during a trial, the slowdown is still growing
_RECOVERY_THRESHOLD = 0.9  # below this fraction of the last good limit, the limit recovers without a trial
_UTILIZATION_THRESHOLD = 0.9  # fraction of the current limit that must be used before the limit is raised
_MIN_PROBED_IN_FLIGHT = 4
# The load is steady if it is at least this fraction of what it was, minus the difference that chance makes.
_STEADY_LOAD, _CHANCE_DIFFERENCE = 0.75, 2


class AdaptiveLimit:
    """The limit on the requests in flight to one backend, which adapts to its responses.

    `current` is the limit at present, in requests. All times are in seconds of the caller's clock.
    """

    def __init__(self, bounds: LimitBounds, now: float) -> None:
        self.bounds = bounds
        self.current = bounds.ceiling  # maximum number of requests in flight
        self._limit = self._target = self._good_limit = float(bounds.ceiling)
        self._meter = ResponseMeter(now)
        self._rejections, self._congestion = RejectionHistory(), CongestionWindow()
        self._free_slots = FreeSlots()
        self._regrowth, self._lowered_at = Regrowth(), -math.inf
        self._load_fell = False  # True if fewer requests were in flight at the last response than before
        self._trial: LimitTrial | None = None
        self._schedule = TrialSchedule(bounds.ceiling, now)

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
        """Record the end of a request, and adapt the limit. Return why the limit changed; None if it did not.

        Args:
            signal: what the end of the request shows about the backend's load.
            sent_at: when the request was sent.
            now: the current time.
            in_flight: number of requests in flight now, including this request.
            in_flight_when_sent: number of requests in flight just after this request was sent.
            kind: group of requests whose response times are compared, such as one model and response length.
        """
        meter = self._meter
        if in_flight > meter.window.peak:
            meter.window.peak = in_flight
        if meter.noise is None:
            has_response = signal is LoadSignal.RESPONDED
            meter.count_first_round_end(in_flight, sent_at, now, has_response=has_response)
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
        if self._limit < self._regrowth.goal and sent_at > self._regrowth.rejected_at:
            if 2 * in_flight >= self.current:  # else the response does not show that more is possible
                self._regrow(now)
            return None
        has_fallen = in_flight < _STEADY_LOAD * min(in_flight_when_sent, self.current) - _CHANCE_DIFFERENCE
        return self._on_response(now - sent_at, now, kind, has_fallen=has_fallen)

    def _regrow(self, now: float) -> None:
        if self._limit < _RECOVERY_THRESHOLD * self._regrowth.goal:
            self._settle(now)
        self._target = self._regrowth.grow(self._limit)
        self._apply(self._target)
        self._good_limit = max(self._good_limit, self._limit)

    def _on_response(
        self, seconds: float, now: float, kind: Hashable, *, has_fallen: bool
    ) -> LimitChange | None:
        """Measure a response that took `seconds`. Return why the limit changed; None if it did not change.

        Args:
            has_fallen: True if the number of requests in flight is now far below the limit, and far below
                the number when this request was sent.
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
        """Pause the measurement of responses, because the number of requests in flight has fallen.

        If a decrease of the limit is being tested, the test cannot be completed without the former load. Undo
        this decrease and return PROBE_REVERTED. In all other cases, return None.
        """
        trial, self._load_fell = self._trial, True
        if trial is None or trial.change is LimitChange.INCREASE_PROBE:
            self._settle(now)
            return None
        self._good_limit = trial.limit
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def search_free_slot(self, now: float) -> None:
        """Raise the limit by 1 if no response has arrived for a long time after a refusal (`BUSY`).

        Call this regularly while as many requests are in flight as the limit allows.
        """
        slots = self._free_slots
        if slots.limit < self.bounds.ceiling and slots.search(now, self._meter.response_seconds):
            self._apply(self._limit)

    def _raise_to_free_slots(self, now: float) -> None:
        """Raise the limit after a response, if the backend has refused requests because of other clients."""
        if self._free_slots.limit < math.inf:
            self._free_slots.record_response(now, self._meter.response_seconds)
            self._apply(self._limit)

    def on_aborted(self, sent_at: float, now: float) -> None:
        """Record that the request sent at `sent_at` ended without an outcome, such as a cancelled request."""
        self._meter.count_first_round_end(0, sent_at, now, has_response=False)

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
        self._regrowth.record_rejection(self._used(), now)
        if self._clamped(lower) >= self._limit:
            return None  # the limit is at its minimum, and increases must stay possible
        if congestion.is_slight:
            self._target = self._clamped(lower)
            self._apply(self._target)
            return LimitChange.REJECTED
        return self._lower(lower, congestion.used, now, LimitChange.REJECTED)

    def _on_timeout(self, sent_at: float, now: float) -> LimitChange | None:
        """Lower the limit after a timeout, and return the reason of the change.

        If the limit was lowered after the request was sent, or less than one measurement window (0.25 to 2
        seconds) ago, keep the limit and return None.
        """
        if sent_at < self._lowered_at or now - self._lowered_at < self._meter.window_seconds:
            return None
        used, self._regrowth = self._used(), Regrowth()
        return self._lower(used * _TIMEOUT_FACTOR, used, now, LimitChange.TIMED_OUT)

    def _lower(self, lower: float, used: float, now: float, change: LimitChange) -> LimitChange:
        trial = self._trial
        if trial is not None and trial.change is LimitChange.INCREASE_PROBE:
            # The result is not below the limit that worked before the trial.
            lower = min(max(lower, trial.limit), used * _RECOVERY_THRESHOLD)
        self._good_limit = (used + lower) / 2
        self._lowered_at, self._trial = now, None
        self._schedule.pause_increases(self._good_limit, self._meter.window_seconds, now)
        return self._set_target(lower, now, change)

    def _evaluate_window(self, now: float) -> LimitChange | None:
        """Change the limit if the responses of the last seconds (the current window) give a reason for it.

        Return the reason of the change; None if the limit stays as it is, or if more responses are needed.
        """
        meter, window, trial = self._meter, self._meter.window, self._trial
        if trial is not None:
            enough = trial.responses_needed(meter)
        elif window.slow_since < math.inf or (meter.noise is not None and meter.baseline.baseline is None):
            enough = meter.responses_to_compare_windows(DECREASE_EFFECT)
        else:
            enough = meter.responses_to_compare_with_baseline(math.log(self.bounds.tolerance), self._limit)
        if window.responses < enough or (meter.noise is None and not meter.is_first_round_over(now)):
            return None
        if meter.update_noise() is None:
            self._settle(now)
            return None
        if trial is not None:
            return self._judge_trial(trial, now)
        meter.baseline.end_window(window.level, meter.error)
        can_queue = meter.response_seconds >= NEVER_SLOW_SECONDS and window.peak >= _MIN_PROBED_IN_FLIGHT
        if can_queue and meter.baseline.slowdown(window.level) > self.bounds.tolerance:
            return self._on_slow_window(now)
        change = (self._try_decrease(now) if can_queue else None) or self._try_increase(now)
        if change is None:
            meter.add_to_history()
            meter.window = MeasurementWindow(now)
        return change

    def _on_slow_window(self, now: float) -> LimitChange | None:
        """Decrease the limit if responses were slow for long enough, and return the reason.

        Otherwise start a new measurement window, store in it when the slow responses began, and return None.
        """
        meter, window = self._meter, self._meter.window
        since = min(window.slow_since, window.since)
        if now - since < _HICCUP_SECONDS or not meter.proves_slowness(DECREASE_EFFECT):
            meter.window = MeasurementWindow(now, slow_since=since)
            return None
        lower = self._used() * slow_factor(meter.baseline.slowdown(window.level))
        return self._start_trial(lower, window.level, now, LimitChange.SLOW)

    def _try_decrease(self, now: float) -> LimitChange | None:
        if not self._schedule.may_decrease(self._meter, now):
            return None
        self._meter.add_to_history()
        lower = self._used() * DECREASE_FACTOR
        return self._start_trial(lower, self._meter.history.level, now, LimitChange.DECREASE_PROBE)

    def _try_increase(self, now: float) -> LimitChange | None:
        is_used = self._meter.window.peak >= _UTILIZATION_THRESHOLD * self.current
        if self._limit >= self.bounds.ceiling or not is_used:
            return None
        if self._limit < self._good_limit * _RECOVERY_THRESHOLD:
            higher = self._limit + max(1.0, (self._good_limit - self._limit) / 2)
            return self._set_target(higher, now, LimitChange.RECOVERED)
        if not self._schedule.may_increase(now):
            return None
        self._meter.add_to_history()
        higher = self._schedule.increased(self._limit)
        return self._start_trial(higher, self._meter.history.level, now, LimitChange.INCREASE_PROBE)

    def _start_trial(self, limit: float, level: float, now: float, change: LimitChange) -> LimitChange:
        self._trial = LimitTrial(self._limit, self._used(), level, change)
        self._regrowth.goal = 0.0  # else the limit would grow during the trial
        return self._set_target(limit, now, change)

    def _judge_trial(self, trial: LimitTrial, now: float) -> LimitChange | None:
        meter = self._meter
        result = trial.judge(meter, self.current)
        if result is TrialResult.NO_CHANGE:
            return self._end_trial(now)
        if result is TrialResult.UNCLEAR:
            return None
        meter.baseline.end_window(meter.window.level, meter.error)
        queued = result is TrialResult.QUEUED
        if trial.change is LimitChange.INCREASE_PROBE:
            return self._undo_increase(trial, now) if queued else self._keep_increase(now)
        return self._keep_decrease(trial, now) if queued else self._undo_decrease(trial, now)

    def _keep_increase(self, now: float) -> None:
        """Keep the increased limit, because the additional requests did not queue in the backend.

        The limit may be increased again immediately.
        """
        self._good_limit = self._limit
        self._regrowth.goal = self._regrowth.highest  # the backend accepts more than at its last rejection
        self._schedule.expect_decreases_to_help()
        self._end_trial(now)
        self._schedule.continue_increases(now)

    def _undo_increase(self, trial: LimitTrial, now: float) -> LimitChange:
        """Undo an increase of the limit that was a trial. Return PROBE_REVERTED.

        The responses have shown that the additional requests only waited in the backend's queue.
        """
        self._good_limit = trial.limit
        self._schedule.pause_increases(self._good_limit, self._meter.window_seconds, now)
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def _keep_decrease(self, trial: LimitTrial, now: float) -> LimitChange | None:
        """Keep a decreased limit or decrease it further, because the decrease made responses faster.

        If at least 4 requests were in flight, some requests can still wait in the backend in two cases:
        responses are slower than usual, or the trial began without slow responses (`DECREASE_PROBE`). Then
        start another decrease as a new trial, and return the reason. Otherwise end the trial and return None.
        """
        self._good_limit = self._limit
        self._schedule.expect_decreases_to_help()
        level = self._meter.window.level
        crowded = self._meter.baseline.slowdown(level) > self.bounds.tolerance
        if (crowded or trial.change is LimitChange.DECREASE_PROBE) and self._used() >= _MIN_PROBED_IN_FLIGHT:
            return self._start_trial(self._used() * DECREASE_FACTOR, level, now, trial.change)
        self._schedule.pause_increases(self._good_limit, self._meter.window_seconds, now)
        return self._end_trial(now)

    def _undo_decrease(self, trial: LimitTrial, now: float) -> LimitChange:
        """Undo or repeat a decrease that did not make responses faster. Return why the limit changed.

        - The trial began without slow responses (`DECREASE_PROBE`): restore the limit from before the trial.
        - The trial began because of slow responses, it had only one decrease, and the limit is above 1:
          decrease the limit once more.
        - Otherwise the backend is slow, but requests do not wait in it: restore the limit from before the
          trial. From now on, the slow response time is the usual response time.
        """
        level, slow = self._meter.window.level, trial.change is LimitChange.SLOW
        trial.failures += 1
        if slow and trial.failures < _MAX_FAILED_DECREASES and self._limit > 1:
            if level > trial.level + _STILL_RISING:
                trial.level, trial.used = level, self._used()
            return self._set_target(self._used() * DECREASE_FACTOR, now, LimitChange.SLOW)
        if slow:
            self._meter.baseline.rebase(trial.level)
        self._schedule.try_decreases_less_often()
        self._good_limit = trial.limit
        self._end_trial(now)
        return self._set_target(trial.limit, now, LimitChange.PROBE_REVERTED)

    def _end_trial(self, now: float) -> None:
        self._trial = None
        self._schedule.end_trial(self._meter.response_seconds, now)
        self._meter.start_windows(now)

    def _used(self) -> float:
        """Return the highest number of requests in flight in the current measurement window.

        The result is never above the limit. If the number is not known, return the limit.
        """
        return max(1.0, min(self._limit, self._meter.window.peak or self._limit))

    def _set_target(self, limit: float, now: float, change: LimitChange) -> LimitChange:
        """Set the value that the limit shall have from now on. Return `change`, the reason of the change.

        A decreased or restored limit takes effect immediately. Any other increase takes effect step by step,
        to avoid a burst of requests.
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
        return min(max(limit, 1.0), float(self.bounds.ceiling))
