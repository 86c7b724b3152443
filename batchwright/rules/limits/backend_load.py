"""Load of a backend as its responses show it: how slow they are, and how many requests it rejects.

Response times are compared with the usual response times of the same backend, corrected for the sizes of the
responses.

There are two reasons for rejections. If a backend can process C requests at once and gets L requests at once,
and L is greater than C, it rejects the fraction 1 - C/L of them. With fewer requests in flight, this fraction
falls to zero. A gateway that fails now and then is different: it rejects the same fraction at any L. There,
fewer requests in flight would only cost throughput. To distinguish the two cases, requests sent at high
concurrency are compared with requests sent at low concurrency.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

TRIAL_RESPONSES = 24  # minimum number of responses for comparing two levels
_CERTAINTY = 2.0  # standard errors by which two levels must differ
_MAX_KINDS = 512
_LEARNING_RATE = 0.05  # by which fraction one response moves the usual offset of its kind
_FALL, _DRIFT, _RISE = 0.5, 0.1, 0.02  # steps of the baseline towards a lower or higher level, per window
_HISTORY, _MIN_COMPARED = 128, 16  # outcomes that are kept; outcomes needed at high and at low concurrency
_LOW_CONCURRENCY = 0.75  # up to this fraction of its peak, the concurrency counts as low
_MAX_USUAL_SHARE = 1 / 3  # with a larger fraction of rejections, the backend counts as overloaded
_TOLERANCE = 3.0  # standard deviations by which rejections may exceed the usual number
_FOLLOW = 0.25  # by which fraction the usual fraction moves towards a new measurement
_FIRST_SHARE = 0.97  # fraction of the first requests that have to end before the baseline is measured
_FIRST_PATIENCE = 10.0  # multiple of the response time after which the first requests count as ended
_LOWEST, _SLIGHT = 0.7, 0.05  # fractions of the requests in flight
_MIN_WINDOW_SECONDS, _MAX_WINDOW_SECONDS = 0.25, 2.0
_SETTLE_FACTOR = 1.25  # multiple of the response time until a trial has an effect on responses
_SLOTS_PER_RESPONSE = 0.5  # by which a response raises the limit of a backend that has refused requests
# After so long without a response, and at least as long as some usual responses take, one more request may be
# sent from time to time to a backend that has refused requests.
_SILENT_SECONDS, _SILENT_RESPONSES, _BETWEEN_SEARCHES = 30.0, 3.0, 1.0
_HISTORY_DECAY = 0.9  # weight of earlier windows with each new one


class LoadSignal(StrEnum):
    """Sign of a backend's load, seen at the end of a request."""

    RESPONDED = "responded"
    REJECTED = "rejected"  # overloaded or unavailable
    BUSY = "busy"  # other callers, which the backend serves first, use its slots
    TIMED_OUT = "timed_out"
    ANSWERED = "answered"  # with an error that does not show how busy the backend is
    NEUTRAL = "neutral"  # does not show how busy the backend is


@dataclass(slots=True)
class MeasurementWindow:
    """Sums over the responses since the time `since`.

    The level of a response is the logarithm of its duration in seconds, corrected for the kind of request
    (`LatencyBaseline`).

    Attributes:
        levels: sum of the levels.
        peak: highest number of requests in flight.
    """

    since: float
    responses: float = 0.0
    levels: float = 0.0
    squares: float = 0.0  # sum of the squared levels
    peak: int = 0

    @property
    def level(self) -> float:
        return self.levels / self.responses

    @property
    def variance(self) -> float:
        """Return the statistical variance of the latency levels of single responses."""
        return max(0.0, self.squares / self.responses - self.level**2)

    def add(self, level: float) -> None:
        self.responses += 1
        self.levels += level
        self.squares += level * level


class LatencyBaseline:
    """Estimates the level of a backend (how slow it is now) and its baseline (how slow it usually is).

    A kind is a group of comparable responses: the same model and about the same length. The logarithm of a
    response's seconds is modelled as a sum: the level of the backend, the usual offset of the response's
    kind, and noise. All kinds share one level. So ten long responses after ten short responses do not look
    like a slowdown. Responses of one model also show how slow the backend is for other models. The baseline
    follows lower levels quickly and higher levels slowly.
    """

    def __init__(self) -> None:
        self._offsets: dict[Hashable, float] = {}
        self._window: dict[Hashable, tuple[int, float]] = {}  # count and sum of levels
        self._level: float | None = None
        self.baseline: float | None = None

    def record(self, kind: Hashable, seconds: float) -> float:
        """Add a response to the current window, and return its latency level.

        The level is the logarithm of `seconds` minus the usual offset of the response's kind.
        """
        value = math.log(max(seconds, 1e-4))
        offset = self._offsets.get(kind)
        if offset is None:
            if len(self._offsets) >= _MAX_KINDS:
                self._offsets.clear()
            self._level = value if self._level is None else self._level
            offset = self._offsets[kind] = value - self._level
        level = value - offset
        responses, levels = self._window.get(kind, (0, 0.0))
        self._window[kind] = (responses + 1, levels + level)
        return level

    def end_window(self, level: float, error: float = 0.0) -> None:
        """End the current window of responses.

        This updates the usual offset of each kind of response in the window. It also moves the baseline, the
        usual latency level, towards `level`. How fast it moves depends on the difference between them:

        - If the difference is at most two standard errors, it moves slowly, because the difference may be
          chance.
        - If `level` is lower by more than that, it moves quickly, except for the first two standard errors.
        - If `level` is higher by more than that, it moves very slowly.

        Args:
            level: mean latency level of the window's responses.
            error: standard error of this mean.
        """
        for kind, (responses, levels) in self._window.items():
            if kind in self._offsets:
                self._offsets[kind] += min(0.5, responses * _LEARNING_RATE) * (levels / responses - level)
        self._window.clear()
        self._level = level
        if self.baseline is None:
            self.baseline = level
        elif abs(level - self.baseline) <= 2 * error:
            self.baseline += _DRIFT * (level - self.baseline)
        elif level > self.baseline:
            self.baseline += _RISE * (level - self.baseline)
        else:
            chance = 2 * error
            self.baseline += _FALL * (level + chance - self.baseline) - _DRIFT * chance

    def discard_window(self) -> None:
        """Discard the responses of the current window: they cannot be compared with later responses."""
        self._window.clear()

    def rebase(self, level: float) -> None:
        """Make `level` the new baseline, because this latency has proved to be normal for the backend."""
        self._level = self.baseline = level

    def slowdown(self, level: float) -> float:
        """Return how many times slower than usual the latency `level` is; 1.0 if no baseline is known.

        Args:
            level: a latency level that `record` returned, or the mean of several.
        """
        return 1.0 if self.baseline is None else math.exp(level - self.baseline)


@dataclass(slots=True)
class _FirstRequests:
    """The requests that were in flight when the first response of the backend arrived.

    Among them, requests with short responses end first. If only these were measured, the usual response time
    would be too low, and all later responses would look slow. So the measurement begins when most of the
    first requests have ended.

    Attributes:
        until: time of the first response.
        unfinished: how many of the first requests still have to end before the measurement may begin.
    """

    until: float
    unfinished: float


class ResponseMeter:
    """Measures the response times of one backend. It groups the responses into windows of time.

    Attributes:
        window: the responses of the current window.
        history: weighted sum of the earlier windows with the same limit.
        baseline: the usual response times.
        response_seconds: moving average of the response time; 0 before the first response.
        noise: variance of a single response's latency level; None before it is measured.
    """

    def __init__(self, now: float) -> None:
        self.window, self.history = MeasurementWindow(now), MeasurementWindow(now)
        self.baseline = LatencyBaseline()
        self.response_seconds = 0.0
        self.noise: float | None = None
        self._first: _FirstRequests | None = None  # set by the first response
        self._paused_until = now

    def record(self, kind: Hashable, seconds: float, now: float) -> bool:
        """Add a response to the current window.

        Return True if the window has lasted at least `window_seconds`. During a pause (`pause_until`), the
        response is not added, and the result is False.
        """
        window = self.window
        if now < self._paused_until:
            window.peak = 0
            return False
        window.add(self.baseline.record(kind, seconds))
        age = now - window.since
        return age >= _MIN_WINDOW_SECONDS and age >= self.window_seconds

    def record_early_end(self, in_flight: int, sent_at: float, now: float, *, has_response: bool) -> None:
        """Count the end of a request, to find out when the first requests have ended.

        Call this for each request until `noise` is known.
        """
        if self._first is None and has_response:
            self._first = _FirstRequests(now, in_flight * _FIRST_SHARE)
        if self._first is not None and sent_at <= self._first.until:
            self._first.unfinished -= 1

    def first_requests_have_ended(self, now: float) -> bool:
        """Return True if most of the first requests have ended.

        The first requests are those that were in flight when the first response arrived. The result is also
        True if they take much longer than the usual response time. It is False before the first response.
        """
        first = self._first
        if first is None:
            return False
        return first.unfinished <= 0 or now - first.until > _FIRST_PATIENCE * self.response_seconds

    @property
    def window_seconds(self) -> float:
        """Minimum duration of a window, in seconds."""
        return min(max(self.response_seconds, _MIN_WINDOW_SECONDS), _MAX_WINDOW_SECONDS)

    @property
    def settle_seconds(self) -> float:
        """Seconds to wait after a change of the limit, until the responses show its effect."""
        return (_SETTLE_FACTOR + 2 * math.sqrt(self.noise or 0.0)) * self.response_seconds

    @property
    def error(self) -> float:
        """The statistical standard error of the current window's mean latency level."""
        return math.sqrt((self.noise or 0.0) / self.window.responses)

    def responses_to_tell(self, difference: float) -> float:
        """Return how many responses a window needs to show that its latency level differs from the baseline.

        `difference` is the smallest difference between level and baseline that must be noticed.
        """
        return (self.noise or 0.0) * (_CERTAINTY / difference) ** 2

    def responses_to_see(self, effect: float) -> float:
        """Return how many responses each of two windows needs to show that their latency levels differ.

        `effect` is the smallest difference between the two levels that must be noticed.
        """
        return max(TRIAL_RESPONSES, 2 * (self.noise or 0.0) * (_CERTAINTY / effect) ** 2)

    def update_noise(self) -> float | None:
        """Update `noise`, the variance of a single response's latency level, from the current window.

        Return its previous value, which is None at first.
        """
        variance, before = self.window.variance, self.noise
        if before is None:
            self.noise = variance
        else:
            self.noise = before + min(0.5, self.window.responses / 200) * (variance - before)
        return before

    def add_to_history(self) -> None:
        """Add the current window to the history. Trials are compared with the history."""
        self.history.responses = self.history.responses * _HISTORY_DECAY + self.window.responses
        self.history.levels = self.history.levels * _HISTORY_DECAY + self.window.levels

    def start_windows(self, now: float) -> None:
        """Forget all responses so far: start an empty window at `now`, and clear the history."""
        self.window, self.history = MeasurementWindow(now), MeasurementWindow(now)

    def pause_until(self, at: float) -> None:
        """Forget all responses so far (window and history), and measure no response before the time `at`."""
        self._paused_until = at
        self.baseline.discard_window()
        self.start_windows(at)


@dataclass(slots=True)
class CongestionWindow:
    """Groups rejections of requests that were in flight together. One group lowers the limit only once.

    Attributes:
        since: time of the group's first rejection.
        rejected: number of rejections in the group.
    """

    since: float = -math.inf
    used: float = 1.0  # requests in flight at the time `since`
    rejected: int = 0

    def record_rejection(self, used: float, *, sent_at: float, now: float, span: float) -> float:
        """Count a rejection. Return the new limit that follows from all rejections in its group.

        The limit is the number of requests in flight when the group started, minus one for each rejection. It
        is at least 70 % of that number.

        A rejection starts a new group if two conditions are met: its request was sent after the current group
        started, and the current group is at least `span` seconds old.

        Args:
            used: number of requests in flight now. A new group starts with this number.
            sent_at: when the rejected request was sent.
            now: the current time.
            span: minimum duration of a group, in seconds.
        """
        if sent_at >= self.since and now - self.since >= span:
            self.since, self.used, self.rejected = now, used, 0
        self.rejected += 1
        return max(self.used - self.rejected, self.used * _LOWEST)

    @property
    def is_slight(self) -> bool:
        return self.rejected < _SLIGHT * self.used


class RejectionHistory:
    """Recent outcomes of one backend's requests, rejected or not.

    `usual` is the fraction of requests, from 0 to 1, that the backend rejects at any load; 0 if unknown.
    """

    def __init__(self) -> None:
        self.usual = 0.0
        self._seen: deque[tuple[int, bool]] = deque(maxlen=_HISTORY)
        self._rejected = self._recorded = 0

    def record(self, in_flight: int, *, rejected: bool) -> None:
        """Record one outcome, rejected or not.

        Args:
            in_flight: number of requests in flight when the request was sent, including it.
        """
        if self._rejected and len(self._seen) == _HISTORY:
            self._rejected -= self._seen[0][1]
        self._seen.append((in_flight, rejected))
        if rejected:
            self._rejected += 1
        self._recorded += 1
        if self._recorded % _HISTORY == 0 and self.usual:
            change = _FOLLOW * (self._rejected / _HISTORY - self.usual)
            self.usual = min(self.usual + change, _MAX_USUAL_SHARE)

    def is_usual(self) -> bool:
        """Return True if the backend now rejects about as many requests as usual, or fewer.

        Return False if it rejects more, or if the usual fraction is not known.
        """
        if not self.usual:
            return False
        expected = self.usual * len(self._seen)
        return self._rejected <= expected + _TOLERANCE * math.sqrt(expected * (1 - self.usual)) + 1

    def ineffective_decrease_from(self) -> int:
        """Check whether lower concurrency has reduced rejections.

        If it has not, return the highest recorded concurrency. Concurrency is the number of requests in
        flight when a request was sent. Lower concurrency did not help if the backend rejects about the same
        fraction of requests at low and at high concurrency. In this case, also store this fraction in
        `usual`, and delete the recorded outcomes.

        Return 0 if lower concurrency reduced rejections, or if there are too few outcomes to decide.
        """
        peak = max((in_flight for in_flight, _ in self._seen), default=0)
        high = [
            (in_flight, rejected) for in_flight, rejected in self._seen if in_flight > _LOW_CONCURRENCY * peak
        ]
        low = [
            (in_flight, rejected)
            for in_flight, rejected in self._seen
            if in_flight <= _LOW_CONCURRENCY * peak
        ]
        if min(len(high), len(low)) < _MIN_COMPARED:
            return 0
        share = _rejected_share(low)
        # The fraction to expect at low concurrency if overload were the reason.
        expected = max(0.0, 1 - (1 - _rejected_share(high)) * _mean_in_flight(high) / _mean_in_flight(low))
        if not 0 < share <= _MAX_USUAL_SHARE or share <= (expected + _rejected_share(high)) / 2:
            return 0
        self.usual = self._rejected / len(self._seen)
        self._seen.clear()
        self._rejected = self._recorded = 0
        return peak


class FreeSlots:
    """Limit of requests in flight for a backend that serves other clients first and refuses further requests.

    A refusal is quick and harmless, and it shows exactly how many slots are free. So a free slot is found by
    trying: each response raises the limit a little. It is raised more if the backend has refused nothing for
    as long as a response takes.

    If the requests in flight hang, no response comes. `search` then raises the limit after some time.
    """

    def __init__(self) -> None:
        self.limit = math.inf  # requests in flight
        self._refused_at = self._answered_at = self._searched_at = -math.inf

    def record_refusal(self, in_flight: int, now: float) -> None:
        """Lower the limit to the number of requests that the backend has accepted, but at least to 1.

        `in_flight` includes the refused request.
        """
        if self.limit == math.inf:
            self._answered_at = now  # responses before the first refusal are not recorded
        self.limit, self._refused_at = float(max(in_flight - 1, 1)), now

    def record_response(self, now: float, response_seconds: float) -> None:
        """Raise the limit, because a response has arrived that is not a refusal.

        Args:
            now: the current time.
            response_seconds: usual duration of a request; 0 if unknown.
        """
        self.limit += 1.0 if now - self._refused_at > response_seconds else _SLOTS_PER_RESPONSE
        self._answered_at = now

    def search(self, now: float, response_seconds: float) -> bool:
        """Raise the limit by 1 if no response has arrived for a long time.

        Return True if the limit was raised. Call this regularly while the whole limit is used. The parameters
        are those of `record_response`.
        """
        if now - self._answered_at < max(_SILENT_SECONDS, _SILENT_RESPONSES * response_seconds):
            return False
        if now - max(self._refused_at, self._searched_at) < _BETWEEN_SEARCHES:
            return False
        self.limit, self._searched_at = self.limit + 1, now
        return True


def _rejected_share(outcomes: list[tuple[int, bool]]) -> float:
    return sum(rejected for _, rejected in outcomes) / len(outcomes)


def _mean_in_flight(outcomes: list[tuple[int, bool]]) -> float:
    return sum(in_flight for in_flight, _ in outcomes) / len(outcomes)
