"""Trials of a concurrency limit: the limit is changed, and response times decide if the change is kept.

If requests queue in the backend, fewer requests in flight make responses faster, and more requests make them
slower. If no requests queue, response times stay the same. There are three kinds of trial:

- After slow responses, the limit is lowered. If responses do not get faster, the backend is slow but not
  crowded, and the limit is restored.
- From time to time, the limit is lowered although responses are not slower than usual. If requests have
  queued in the backend from the start, the usual response time is too long.
- If nearly as many requests are in flight as the limit allows, the limit is raised. If the additional
  requests do not queue, the next increase is larger.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from batchwright.rules.limits.response_meter import ResponseMeter

NEVER_SLOW_SECONDS = 0.1  # faster responses never count as slow
DECREASE_FACTOR, _MIN_DECREASE_FACTOR = 0.7, 0.5
_DECREASE_SECONDS, _INCREASE_SECONDS = 30.0, 2.0  # minimum between trials; failed decreases double the first
_MAX_PAUSE_SECONDS = 480.0
_PROBE_COST = 0.025  # fraction of the capacity that decreases without a reason may cost
_CHEAP_PROBE_SECONDS = 1.8  # a decrease that costs less full capacity than this is always allowed
# Requests queue in the backend if response times follow a changed concurrency by more than this fraction.
# Within the width around the fraction, the result is unclear.
_QUEUED_SHARE, _UNCLEAR_WIDTH = 0.5, 0.25
_SAME_CONCURRENCY = 0.05  # a change of the logarithm of the concurrency below this has no effect
DECREASE_EFFECT = -_QUEUED_SHARE * math.log(DECREASE_FACTOR)  # least effect of a decrease on the level
_INCREASE_FACTOR, _FAST_INCREASE_FACTOR, _MAX_INCREASE_FACTOR = 1.25, 1.6, 2.0
_BEST_LIMIT_DECAY = 0.98  # applied to the best limit so far after each failed increase


@dataclass(frozen=True, slots=True)
class LimitBounds:
    """The bounds of an adaptive limit: its maximum, and the accepted slowdown of responses.

    Attributes:
        ceiling: maximum of the limit, in requests in flight.
        tolerance: accepted ratio of the response time to the usual response time. If the ratio is greater, a
            lower limit is tested.
    """

    ceiling: int
    tolerance: float = 1.5


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


class TrialResult(StrEnum):
    """The result of a trial (a tested change of the limit), according to the responses so far."""

    UNCLEAR = "unclear"  # more responses are needed
    NO_CHANGE = "no_change"  # as many requests are in flight as before the trial
    QUEUED = "queued"  # response times follow the number of requests in flight: some wait in the backend
    ROOM = "room"  # response times stayed the same


@dataclass(slots=True)
class LimitTrial:
    """A recent change of the limit that is still being tested.

    Attributes:
        limit: the limit before the change.
        used: number of requests in flight before the change.
        level: mean latency level of the responses before the change. The latency level of a response is the
            logarithm of its seconds, corrected for the kind of request.
        change: reason of the change.
        failures: how often the limit was lowered in this trial without making responses faster.
    """

    limit: float
    used: float
    level: float
    change: LimitChange
    failures: int = 0

    def responses_needed(self, meter: ResponseMeter) -> float:
        """Return how many responses the current measurement window must have before `judge` is called.

        Args:
            meter: measures the responses in the current window.
        """
        # If requests queue, the level changes by at least this much.
        effect = _QUEUED_SHARE * abs(self._change(meter)) or DECREASE_EFFECT
        return meter.responses_to_compare_windows(effect)

    def judge(self, meter: ResponseMeter, limit: int) -> TrialResult:
        """Decide from the responses in the meter's current window if this change of the limit has helped.

        Args:
            meter: measures the responses.
            limit: the current limit.
        """
        change = self._change(meter)
        if abs(change) < _SAME_CONCURRENCY and limit > 1:
            return TrialResult.NO_CHANGE
        share = (meter.window.level - self.level) / change if change else 1.0
        is_unclear = abs(share - _QUEUED_SHARE) < _UNCLEAR_WIDTH
        if is_unclear and meter.window.responses < 2 * self.responses_needed(meter):
            return TrialResult.UNCLEAR
        is_queued = share >= _QUEUED_SHARE and meter.response_seconds >= NEVER_SLOW_SECONDS
        return TrialResult.QUEUED if is_queued else TrialResult.ROOM

    def _change(self, meter: ResponseMeter) -> float:
        """Return log(new / old), the change of the number of requests in flight in this trial.

        `new` is the highest number in the current window. `old` is the number before the trial.
        """
        return math.log(max(meter.window.peak, 1) / self.used)


class TrialSchedule:
    """The schedule of trials (changes of the limit that are tested): when each may begin, and its size."""

    def __init__(self, ceiling: int, now: float) -> None:
        self._best_limit = float(ceiling)
        self._increase_factor = _INCREASE_FACTOR
        self._decrease_pause = _DECREASE_SECONDS
        self._measured_at = now  # end of the last trial, or the start
        self._next_decrease_at, self._next_increase_at = now + _DECREASE_SECONDS / 3, now

    def may_decrease(self, meter: ResponseMeter, now: float) -> bool:
        """Return True if the limit may now be lowered without any sign of overload.

        Such a decrease tests whether responses get faster with fewer requests in flight. The test reduces
        throughput. The lost throughput is the cost of the test. A cost of one second is the number of
        requests that the backend completes in one second without the test.

        Two conditions must be met. First, the last trial (any tested change of the limit) has ended long
        enough ago: usually 30 seconds, and longer after decreases that did not help. Second, the expected
        cost is at most `_CHEAP_PROBE_SECONDS`, or at most the fraction `_PROBE_COST` of the time since the
        end of the last trial.
        """
        if now < self._next_decrease_at:
            return False
        rate = meter.window.responses / max(now - meter.window.since, 1e-6)
        responses = meter.responses_to_compare_windows(DECREASE_EFFECT)
        seconds = responses / (rate * DECREASE_FACTOR) + meter.settle_seconds
        cost = (1 - DECREASE_FACTOR) * seconds
        return cost <= _CHEAP_PROBE_SECONDS or cost <= _PROBE_COST * (now - self._measured_at)

    def may_increase(self, now: float) -> bool:
        return now >= self._next_increase_at

    def increased(self, limit: float) -> float:
        """Return the increased limit that is to be tested next. `limit` is the present limit."""
        return max(limit * self._increase_factor, limit + 1)

    def end_trial(self, response_seconds: float, now: float) -> None:
        """Record that a trial (a tested change of the limit) has ended.

        Args:
            response_seconds: usual response time, in seconds.
            now: the current time.
        """
        self._measured_at = now
        self._next_decrease_at = now + max(self._decrease_pause, 20 * response_seconds)

    def expect_decreases_to_help(self) -> None:
        """Set the pause before each tested decrease of the limit to 30 seconds, its first value.

        Call this method after a tested decrease or increase of the limit was a success, because another
        decrease may then help. The pause may be longer than 30 seconds because of
        `try_decreases_less_often`.
        """
        self._decrease_pause = _DECREASE_SECONDS

    def try_decreases_less_often(self) -> None:
        """Double the pause before each tested decrease of the limit, because the last decrease did not help.

        The pause is at most 480 seconds.
        """
        self._decrease_pause = min(self._decrease_pause * 2, _MAX_PAUSE_SECONDS)

    def continue_increases(self, now: float) -> None:
        """Allow another increase of the limit immediately, because the last increase was a success.

        The new increase may be larger than the last increase.
        """
        self._increase_factor = min(self._increase_factor * _INCREASE_FACTOR, _MAX_INCREASE_FACTOR)
        self._next_increase_at = now

    def pause_increases(self, good_limit: float, window_seconds: float, now: float) -> None:
        """Do not raise the limit for some time, because more requests than `good_limit` were too many.

        The pause takes two seconds or five measurement windows, whichever is longer.

        If `good_limit` is below half of the best limit, the first increase after the pause is larger than
        usual. At first, the best limit is the maximum of the limit. Each call reduces the best limit by 2 %.
        If `good_limit` is then higher, it becomes the best limit.

        Args:
            good_limit: the limit that the backend can probably handle.
            window_seconds: duration of a measurement window.
            now: the current time.
        """
        self._best_limit = max(good_limit, self._best_limit * _BEST_LIMIT_DECAY)
        far_below = good_limit < self._best_limit / 2
        self._increase_factor = _FAST_INCREASE_FACTOR if far_below else _INCREASE_FACTOR
        self._next_increase_at = now + max(_INCREASE_SECONDS, 5 * window_seconds)


def slow_factor(slower: float) -> float:
    """Return the factor by which the limit is multiplied after slow responses.

    The factor is 1 / `slower`, but at least 0.5 and at most 0.7. Example: if a crowded backend takes twice as
    long as usual, half of the requests wait in its queue. So half of the limit keeps the backend busy.

    Args:
        slower: the response time divided by the usual response time.
    """
    return min(max(1 / slower, _MIN_DECREASE_FACTOR), DECREASE_FACTOR)
