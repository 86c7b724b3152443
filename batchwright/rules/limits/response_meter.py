"""Measure response times of a backend in windows of time, and compare them with the usual response times.

The minimum length of a window is the usual response time, but never below 0.25 or above 2 seconds. If all
responses take about the same time, a few responses are enough to notice a change. If response times differ
much, many responses are needed. The meter measures how much response times differ, and computes how many
responses a comparison needs. Response times are corrected for the sizes of the responses.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

# Minimum number of responses for comparing a level with the baseline, and two levels with each other.
_WINDOW_RESPONSES, _TRIAL_RESPONSES = 8, 24
_CERTAINTY = 2.0  # standard errors by which two levels must differ
_BEYOND_CHANCE = 5.0  # standard errors above the baseline at which a window with few responses is slow
_MAX_KINDS = 512
_LEARNING_RATE = 0.05  # by which fraction one response moves the usual offset of its kind
_FALL, _DRIFT, _RISE = 0.5, 0.1, 0.02  # steps of the baseline towards a lower or higher level, per window
_FIRST_ROUND_SHARE = 0.97  # fraction of the first round that has to end before the baseline is measured
_FIRST_ROUND_PATIENCE = 10.0  # multiple of the response time after which the first round counts as ended
_MIN_WINDOW_SECONDS, _MAX_WINDOW_SECONDS = 0.25, 2.0
_SETTLE_FACTOR = 1.25  # multiple of the response time until a trial has an effect on responses
_HISTORY_DECAY = 0.9  # weight of earlier windows with each new one


@dataclass(slots=True)
class MeasurementWindow:
    """A period of time that began at `since`, and the sums over the responses in it.

    Each response has a latency level: the logarithm of its seconds, corrected for the kind of request (see
    `LatencyBaseline`).

    Attributes:
        responses: number of responses. In `ResponseMeter.history`, older responses count less, so the number
            may be a fraction.
        levels: sum of the responses' latency levels.
        peak: highest number of requests in flight.
        slow_since: start of the first slow window. If the window directly before this window was not slow,
            the value is infinity.
    """

    since: float
    responses: float = 0.0
    levels: float = 0.0
    squares: float = 0.0  # sum of the squared levels
    peak: int = 0
    slow_since: float = math.inf

    @property
    def level(self) -> float:
        return self.levels / self.responses

    @property
    def variance(self) -> float:
        """Variance of the latency levels of single responses.

        The latency level of a response is the logarithm of its seconds, corrected for the kind of request.
        """
        return max(0.0, self.squares / self.responses - self.level**2)

    def add(self, level: float) -> None:
        self.responses += 1
        self.levels += level
        self.squares += level * level


class LatencyBaseline:
    """The usual latency of a backend (its baseline), with which the latency of new responses is compared.

    Long responses take longer than short responses. This must not look like a slowdown. Therefore responses
    are divided into kinds. Responses of one kind have, for example, the same model and about the same length.
    The latency level of a response is the logarithm of its seconds, minus the offset of its kind. The offset
    is positive for kinds that are usually slow, and negative for kinds that are usually fast. So the levels
    of all kinds and models can be compared.

    The baseline is also a latency level. It follows lower levels quickly and higher levels slowly.
    """

    def __init__(self) -> None:
        self._offsets: dict[Hashable, float] = {}
        self._window: dict[Hashable, tuple[int, float]] = {}  # count and sum of levels
        self._level: float | None = None
        self.baseline: float | None = None

    def record(self, kind: Hashable, seconds: float) -> float:
        """Add a response to the current window (a short period of time), and return its latency level.

        The level is the logarithm of `seconds`, minus the offset of `kind` (see `LatencyBaseline`).
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
        """End the current window, and move the baseline (the usual latency level) towards `level`.

        - If `level` and the baseline differ by at most two standard errors, the difference may be chance. The
          baseline moves slowly.
        - If `level` is more than two standard errors below the baseline, the baseline moves quickly.
        - If `level` is more than two standard errors above the baseline, the baseline moves very slowly.

        The first window sets the baseline to `level`. For each kind of response in the window, the offset
        (see `LatencyBaseline`) is also updated.

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
        """Discard the responses of the current window, because they cannot be compared with later ones.

        A window is a short period of time in which responses are measured.
        """
        self._window.clear()

    def rebase(self, level: float) -> None:
        """Make `level` the usual latency (baseline), because it has proved to be normal for the backend."""
        self._level = self.baseline = level

    def slowdown(self, level: float) -> float:
        """Return by which factor responses take longer than usual; 1.0 if the usual time is not known yet.

        Args:
            level: a latency level (logarithm of seconds) that `record` returned, or the mean of several.
        """
        return 1.0 if self.baseline is None else math.exp(level - self.baseline)


@dataclass(slots=True)
class _FirstRound:
    """The requests that were in flight when the first response of the backend arrived.

    Requests with short responses end first. If only short responses were measured, the usual response time
    would be too low, and all later responses would look slow. So the measurement begins when most requests of
    the first round have ended.

    Attributes:
        until: time of the first response.
        unfinished: how many requests of the first round must still end before the measurement may begin.
    """

    until: float
    unfinished: float


class ResponseMeter:
    """The meter of one backend's response times. It groups responses into windows (short periods of time).

    Attributes:
        window: the responses of the current window.
        history: the responses of earlier windows under the present limit of requests in flight. Older windows
            count less.
        baseline: the usual response times.
        response_seconds: moving average of the response time; 0 before the first response.
        noise: variance of the latency levels of single responses; None before it is measured. The latency
            level of a response is the logarithm of its seconds, corrected for the kind of request.
    """

    def __init__(self, now: float) -> None:
        self.window, self.history = MeasurementWindow(now), MeasurementWindow(now)
        self.baseline = LatencyBaseline()
        self.response_seconds = 0.0
        self.noise: float | None = None
        self._first_round: _FirstRound | None = None  # set by the first response
        self._paused_until = now

    def record(self, kind: Hashable, seconds: float, now: float) -> bool:
        """Add a response to the current window (a short period of time). Return True if the window can end.

        A window can end when it is at least `window_seconds` old. During a pause (see `pause_until`), the
        response is not added, and the result is False.

        Args:
            kind: group of requests whose response times are compared, such as one model and response length.
            seconds: how long the response took.
            now: the current time.
        """
        window = self.window
        if now < self._paused_until:
            window.peak = 0
            return False
        window.add(self.baseline.record(kind, seconds))
        return now - window.since >= self.window_seconds

    def count_first_round_end(
        self, in_flight: int, sent_at: float, now: float, *, has_response: bool
    ) -> None:
        """Count the end of a request if the request belongs to the first round.

        The first round is the requests that were in flight when the backend's first response arrived. Until
        `noise` is measured, call this method at the end of each request.

        Args:
            in_flight: number of requests in flight, including this request.
            sent_at: when the request was sent.
            now: the current time.
            has_response: False if the request ended without a response, for example because it was cancelled.
        """
        if self._first_round is None and has_response:
            self._first_round = _FirstRound(now, in_flight * _FIRST_ROUND_SHARE)
        if self._first_round is not None and sent_at <= self._first_round.until:
            self._first_round.unfinished -= 1

    def is_first_round_over(self, now: float) -> bool:
        """Return True if 97 % of the requests in the first round have ended, or if they take too long.

        The first round is the requests that were in flight when the backend's first response arrived. They
        take too long if more than ten times the usual response time has passed since this first response.
        Before the first response, return False.
        """
        first = self._first_round
        if first is None:
            return False
        return first.unfinished <= 0 or now - first.until > _FIRST_ROUND_PATIENCE * self.response_seconds

    @property
    def window_seconds(self) -> float:
        """Minimum length of a measurement window: the usual response time, limited to 0.25 to 2 seconds."""
        return min(max(self.response_seconds, _MIN_WINDOW_SECONDS), _MAX_WINDOW_SECONDS)

    @property
    def settle_seconds(self) -> float:
        """Seconds from a change of the limit of requests in flight until it affects response times."""
        return (_SETTLE_FACTOR + 2 * math.sqrt(self.noise or 0.0)) * self.response_seconds

    @property
    def error(self) -> float:
        """The statistical standard error of the mean latency level in the current measurement window.

        The latency level of a response is the logarithm of its seconds, corrected for the kind of request.
        """
        return math.sqrt((self.noise or 0.0) / self.window.responses)

    def responses_to_compare_with_baseline(self, difference: float, limit: float) -> float:
        """Return how many responses a measurement window needs for a comparison with the baseline.

        The mean latency level of the window is compared with the baseline, the usual level. With fewer
        responses, a difference between the two levels could be chance. The latency level of a response is the
        logarithm of its seconds, corrected for the kind of request.

        Args:
            difference: the smallest difference between the two levels that must be noticed.
            limit: maximum number of requests in flight. It sets a minimum of the result: half of `limit`, but
                at least 8 and at most 24 responses.
        """
        least = min(max(_WINDOW_RESPONSES, limit / 2), _TRIAL_RESPONSES)
        return max(least, (self.noise or 0.0) * (_CERTAINTY / difference) ** 2)

    def responses_to_compare_windows(self, effect: float) -> float:
        """Return how many responses each of two time windows needs for a comparison of their latency levels.

        With fewer responses, a difference between the two levels could be chance. The latency level is the
        logarithm of a response's seconds, corrected for the kind of request.

        Args:
            effect: the smallest difference between the two levels that must be noticed.
        """
        return max(_TRIAL_RESPONSES, 2 * (self.noise or 0.0) * (_CERTAINTY / effect) ** 2)

    def proves_slowness(self, effect: float) -> bool:
        """Return True if the slow responses of the current window prove that the backend is slow.

        A window is a short period of time. One of two conditions is enough for a proof:

        - The window has at least `responses_to_compare_windows(effect)` responses.
        - The mean latency level of the responses is more than five standard errors above the usual level.

        Args:
            effect: the smallest difference between two latency levels (logarithms of seconds) that must be
                noticed.
        """
        excess = self.window.level - (self.baseline.baseline or 0.0)
        enough = self.responses_to_compare_windows(effect)
        return excess > _BEYOND_CHANCE * self.error or self.window.responses >= enough

    def update_noise(self) -> float | None:
        """Measure in the current window (period of time) how much response times differ, and update `noise`.

        Return the previous value of `noise`, which is None at first.
        """
        variance, before = self.window.variance, self.noise
        if before is None:
            self.noise = variance
        else:
            self.noise = before + min(0.5, self.window.responses / 200) * (variance - before)
        return before

    def add_to_history(self) -> None:
        """Add the responses of the current window (period of time) to the history.

        The history shows the response times under the present limit of requests in flight. If another limit
        is tested, the new responses are compared with the history.
        """
        self.history.responses = self.history.responses * _HISTORY_DECAY + self.window.responses
        self.history.levels = self.history.levels * _HISTORY_DECAY + self.window.levels

    def start_windows(self, now: float) -> None:
        """Discard all responses in the current window and in the history. Start an empty window at `now`."""
        self.window, self.history = MeasurementWindow(now), MeasurementWindow(now)

    def pause_until(self, at: float) -> None:
        """Discard all responses in the current window and in the history. Measure no response before `at`."""
        self._paused_until = at
        self.baseline.discard_window()
        self.start_windows(at)
