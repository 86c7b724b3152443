"""Measure response times of a backend in windows of time, and compare them with the usual response times.

A window is a period of at least 0.25 to 2 seconds. If all responses take about the same time, a few of them
are enough to notice a change. If their times differ much, many responses are needed. The meter measures how
much the times differ, and computes how many responses a comparison needs. Response times are corrected for
the sizes of the responses.
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
        responses: number of responses. It has a fraction if older responses count less.
        levels: sum of the responses' latency levels.
        peak: highest number of requests in flight.
        slow_since: when responses began to be slow, if the windows directly before this one were slow;
            otherwise infinity.
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

    Long responses take longer than short ones. This must not look like a slowdown. Therefore responses are
    divided into kinds, such as one model and about the same length. Each kind has an offset: by how much its
    responses usually take longer than others. All numbers are logarithms of seconds. The latency level of a
    response is the logarithm of its seconds minus the offset of its kind. So the levels of all kinds and
    models can be compared.

    The baseline is a latency level, too. It follows lower levels quickly and higher levels slowly.
    """

    def __init__(self) -> None:
        self._offsets: dict[Hashable, float] = {}
        self._window: dict[Hashable, tuple[int, float]] = {}  # count and sum of levels
        self._level: float | None = None
        self.baseline: float | None = None

    def record(self, kind: Hashable, seconds: float) -> float:
        """Add a response to the current window (a short period of time), and return its latency level.

        The level is the logarithm of `seconds` minus the offset of `kind`. The offset is by how much
        responses of this kind usually take longer than others.
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
        - If `level` is lower by more than that, the baseline moves quickly.
        - If `level` is higher by more than that, the baseline moves very slowly.

        The offset of each kind of response in the window is also updated (by how much responses of this kind
        usually take longer than others).

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

    Among them, requests with short responses end first. If only these were measured, the usual response time
    would be too low, and all later responses would look slow. So the measurement begins when most of these
    requests have ended.

    Attributes:
        until: time of the first response.
        unfinished: how many of these requests still have to end before the measurement may begin.
    """

    until: float
    unfinished: float


class ResponseMeter:
    """The meter of one backend's response times. It groups responses into windows (short periods of time).

    Attributes:
        window: the responses of the current window.
        history: weighted sum of the earlier windows in which the limit of requests in flight was the same.
        baseline: the usual response times.
        response_seconds: moving average of the response time; 0 before the first response.
        noise: variance of a single response's latency level (the logarithm of its seconds, corrected for the
            kind of request); None before it is measured.
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
        age = now - window.since
        return age >= _MIN_WINDOW_SECONDS and age >= self.window_seconds

    def count_first_round_end(
        self, in_flight: int, sent_at: float, now: float, *, has_response: bool
    ) -> None:
        """Count the end of a request, if it was in flight when the backend's first response arrived.

        These requests are the first round, see `is_first_round_over`. Call this at the end of each request
        until `noise` is known.

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
        """Return True if 97 % of the first round have ended; False before the backend's first response.

        The first round is the requests that were in flight when the first response arrived. All of them count
        as ended when ten times the usual response time has passed since then.
        """
        first = self._first_round
        if first is None:
            return False
        return first.unfinished <= 0 or now - first.until > _FIRST_ROUND_PATIENCE * self.response_seconds

    @property
    def window_seconds(self) -> float:
        """Minimum duration of a measurement window: one usual response time, but 0.25 to 2 seconds."""
        return min(max(self.response_seconds, _MIN_WINDOW_SECONDS), _MAX_WINDOW_SECONDS)

    @property
    def settle_seconds(self) -> float:
        """Seconds to wait after the limit of requests in flight has changed, until responses show it."""
        return (_SETTLE_FACTOR + 2 * math.sqrt(self.noise or 0.0)) * self.response_seconds

    @property
    def error(self) -> float:
        """The statistical standard error of the mean latency level in the current measurement window.

        The latency level of a response is the logarithm of its seconds, corrected for the kind of request.
        """
        return math.sqrt((self.noise or 0.0) / self.window.responses)

    def responses_to_compare_with_baseline(self, difference: float, limit: float) -> float:
        """Return how many responses a measurement window needs before it is compared with the usual latency.

        The mean latency level of the window is compared with the baseline, the usual level. With fewer
        responses, a difference between the two could be chance. The latency level of a response is the
        logarithm of its seconds, corrected for the kind of request.

        Args:
            difference: the smallest difference between the two levels that must be noticed.
            limit: maximum number of requests in flight. With a low limit, a window has few responses, so
                fewer responses are required.
        """
        least = min(max(_WINDOW_RESPONSES, limit / 2), _TRIAL_RESPONSES)
        return max(least, (self.noise or 0.0) * (_CERTAINTY / difference) ** 2)

    def responses_to_compare_windows(self, effect: float) -> float:
        """Return how many responses each of two time windows needs before their latency levels are compared.

        With fewer responses, a difference between the two levels could be chance. The latency level is the
        logarithm of a response's seconds, corrected for the kind of request.

        Args:
            effect: the smallest difference between the two levels that must be noticed.
        """
        return max(_TRIAL_RESPONSES, 2 * (self.noise or 0.0) * (_CERTAINTY / effect) ** 2)

    def proves_slowness(self, effect: float) -> bool:
        """Return True if the slow responses of the current window prove that the backend is slow.

        A window is a short period of time. Its responses are a proof in two cases:

        - There are at least as many responses as `responses_to_compare_windows(effect)` returns.
        - Their mean latency level is so far above the usual level that the difference cannot be chance.

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
        """Add the responses of the current window (period of time) to the history of the present limit.

        When another limit of requests in flight is tried, its responses are compared with this history.
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
