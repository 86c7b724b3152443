"""Forecast when live batches will be done, from the remaining lines and the rate at which lines settle.

The forecast assumes that tenants share a model by weight, that the batches of a tenant divide the tenant's
share, and that nothing is idle. It does not consider batches that will be created later.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from batchwright.contracts.batch import BatchForecast, WindowFit
from batchwright.rules.dispatch.request_durations import RequestDurations, longest_remaining
from batchwright.rules.dispatch.work_shares import ModelOfBatch, UnsettledWork, WorkUntil, present_shares
from batchwright.rules.worker_stats import UpstreamTraffic

_RATE_SECONDS = 120.0  # a measurement so old counts about a third as much as a new one
_PRIOR_LINES = 20.0  # weight of the assumption that all lines of a model are equal work
# Relative error of a forecast if all rates are known: batches are created later, backends become slower.
# Calibrated with `python -m bench.forecast`.
_MODEL_ERROR = 0.18
_PAST_WEIGHT = 0.05  # weight of earlier measurements after a time without waiting lines
_MOST_AHEAD = 2.0  # maximum correction for requests that began recently
_Z90 = 1.2816  # 90 % quantile of the normal distribution


_REPORTS = 200  # maximum number of forecasts per completion window that are reported to the workflow
_SHORTEST_REPORT = timedelta(seconds=60)


class RemainingTime(NamedTuple):
    """Forecast of a batch: its remaining seconds, its rate, and how many lines of other batches come first.

    The batch ends within `p50` seconds with a probability of 50 %, and within `p90` seconds with a
    probability of 90 %.
    """

    p50: float
    p90: float
    lines_per_second: float
    lines_ahead: float


class _Progress:
    """Progress of one model of a batch: lines that have settled, and lines that were expected to settle.

    The expected number follows from the part of the model's capacity that the batch gets.
    """

    def __init__(self, settled: int, lines: float, seconds: float) -> None:
        """Start the record of a batch.

        Args:
            settled: number of settled lines.
            lines: number of lines that settled in the last `seconds`.
        """
        self._settled = settled
        self._actual = self._expected = lines
        self._lines, self._seconds = lines, seconds  # recently settled lines, and their seconds

    def record(self, settled: int, expected: float, passed: float) -> None:
        lines, decay = max(settled - self._settled, 0), math.exp(-passed / _RATE_SECONDS)
        self._settled = settled
        self._actual += lines
        self._expected += expected
        self._lines = self._lines * decay + lines
        self._seconds = self._seconds * decay + passed

    @property
    def lines_per_second(self) -> float:
        return self._lines / self._seconds if self._seconds > 0 else 0.0

    @property
    def work_per_line(self) -> float:
        """Work of one line of this batch, relative to an average line of the model."""
        return (self._expected + _PRIOR_LINES) / (self._actual + _PRIOR_LINES)

    @property
    def certainty(self) -> float:
        """Number of settled lines on which `work_per_line` is based."""
        return self._actual + _PRIOR_LINES


class _ModelRate:
    """How fast lines of one model settle while lines wait, and how long its requests take.

    The unit of the rate is average lines per second. A line with more work counts as more than one line.
    """

    def __init__(self) -> None:
        self.durations = RequestDurations()
        self.pending = 0
        self.waiting: list[UnsettledWork] = []  # unsettled work at the last measurement
        self.measured_at = 0.0
        self._work = self._seconds = 0.0  # of the recent past

    @property
    def is_busy(self) -> bool:
        """True if, at the last measurement, the model had more lines left than requests in flight."""
        return sum(each.left for each in self.waiting) > self.pending

    def begin_anew(self) -> None:
        """Reduce the weight of past measurements, because the lines may differ from now on."""
        self._work *= _PAST_WEIGHT
        self._seconds *= _PAST_WEIGHT

    def record(self, done: float, started: int, passed: float) -> None:
        """Record how much work was done in a time in which lines were always waiting.

        Args:
            done: work of the lines that settled, in average lines.
            started: by how much the number of requests in flight has increased. A part of their work is
                counted as done. It is smaller if durations differ much, because short requests end first.
            passed: seconds since the last measurement.
        """
        if passed <= 0:
            return
        partly_done = started * max(1.0 - self.durations.variation, -_MOST_AHEAD) / 2
        decay = math.exp(-passed / _RATE_SECONDS)
        self._work = self._work * decay + max(done + partly_done, done / 2)
        self._seconds = self._seconds * decay + passed

    @property
    def lines_measured(self) -> float:
        return self._work

    @property
    def per_second(self) -> float:
        """Rate in average lines per second; 0 if it is not known."""
        if self._work > 0 and self._seconds > 0:
            return self._work / self._seconds
        return self.pending / self.durations.mean if self.durations.mean > 0 else 0.0


class Forecaster:
    """Forecasts when all live batches will end. It learns from each call of `observe`.

    If the responses of a batch take longer than other responses of its model, the batch settles fewer lines
    in the same time. The forecaster compares the lines that this batch and other batches settle, and so
    learns how much work a line of the batch is.
    """

    def __init__(self) -> None:
        self._models: dict[str, _ModelRate] = defaultdict(_ModelRate)
        self._progress: dict[ModelOfBatch, _Progress] = {}
        self._at: float | None = None

    def observe(self, work: Sequence[UnsettledWork], traffic: Iterable[UpstreamTraffic], now: float) -> None:
        """Learn from the present state. Call this at regular intervals.

        Args:
            work: the unsettled lines of all live batches, except paused and cancelled batches.
            traffic: number and duration of all workers' requests since their start, by model and backend.
            now: the current time, in seconds of any clock.
        """
        passed = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        pending = self._observe_traffic(traffic, passed)
        by_model: dict[str, list[UnsettledWork]] = defaultdict(list)
        for each in work:
            by_model[each.model].append(each)
        self._models = defaultdict(
            _ModelRate,
            {name: model for name, model in self._models.items() if name in pending or name in by_model},
        )
        for name in {*pending, *by_model}:
            self._observe_model(self._models[name], by_model[name], pending.get(name, 0), now)
        live = {each.key for each in work}
        self._progress = {key: progress for key, progress in self._progress.items() if key in live}

    def remaining(self) -> dict[str, RemainingTime]:
        """Return the forecast of each batch by its id, based on the last call of `observe`.

        A batch is left out if the rate of one of its models is not known yet.
        """
        found: dict[str, list[RemainingTime | None]] = defaultdict(list)
        for model in self._models.values():
            for work, remaining in self._remaining_of_model(model):
                found[work.batch_id].append(remaining)
        return {
            batch_id: _slowest([each for each in models if each is not None])
            for batch_id, models in found.items()
            if None not in models
        }

    # Learning

    def _observe_traffic(self, traffic: Iterable[UpstreamTraffic], passed: float) -> Mapping[str, int]:
        pending: dict[str, int] = defaultdict(int)
        for each in traffic:
            self._models[each.model].durations.record(each, passed)
            pending[each.model] += each.pending
        return pending

    def _observe_model(self, model: _ModelRate, work: list[UnsettledWork], pending: int, now: float) -> None:
        passed = now - model.measured_at
        done = self._work_done(model, work, passed)
        expected = self._expected_lines(model, work, done)
        longest = 0.0  # longest time for which a new batch has been in progress
        for each in work:
            progress = self._progress.get(each.key)
            if progress is None:
                age = max(now - each.began, 0.0)
                recent = min(age, _RATE_SECONDS if not model.is_busy else passed)
                lines = each.settled * recent / age if age else 0.0
                progress = self._progress[each.key] = _Progress(each.settled, lines, recent)
                done, longest = done + lines, max(longest, recent)
            else:
                progress.record(each.settled, expected.get(each.key, 0.0), passed)
        if sum(each.left for each in work) > pending:
            if not model.is_busy:
                passed = longest
                model.begin_anew()
            model.record(done, pending - model.pending, passed)
        model.waiting, model.pending, model.measured_at = work, pending, now

    def _expected_lines(
        self, model: _ModelRate, work: Sequence[UnsettledWork], done: float
    ) -> dict[ModelOfBatch, float]:
        """Return how many lines each batch was expected to settle since the last call.

        Within a priority, the expected lines are divided in the same way as the lines that really settled,
        because the order of the batches may have changed meanwhile.
        """
        before = {each.key: each for each in model.waiting}
        part = present_shares(model.waiting)
        shares = defaultdict[tuple[str, int], float](float)
        for each in model.waiting:
            shares[each.tenant, each.priority] += part[each.key]
        batches, lines = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        settled: list[tuple[UnsettledWork, int]] = []
        for each in work:
            if each.key in before:
                settled.append((each, max(each.settled - before[each.key].settled, 0)))
                lines[each.tenant, each.priority] += settled[-1][1]
                batches[each.tenant, each.priority] += 1
        expected: dict[ModelOfBatch, float] = {}
        for each, count in settled:
            group = each.tenant, each.priority
            of_batch = count / lines[group] if lines[group] else 1 / batches[group]
            expected[each.key] = done * shares[group] * of_batch
        return expected

    def _work_done(self, model: _ModelRate, work: Sequence[UnsettledWork], passed: float) -> float:
        """Return how much work was done since the last call, in average lines of the model.

        Only batches that were known at the last call count. A batch that is no longer live has settled its
        last lines, or was paused or cancelled. It counts with its remaining lines, but at most with the lines
        that it usually settles in this time.
        """
        present = {each.key: each for each in work}
        done = 0.0
        for before in model.waiting:
            after, progress = present.get(before.key), self._progress[before.key]
            if after is None:
                lines = min(float(before.left), progress.lines_per_second * passed)
            else:
                lines = max(after.settled - before.settled, 0)
            done += lines * progress.work_per_line
        return done

    # Forecast

    def _remaining_of_model(self, model: _ModelRate) -> list[tuple[UnsettledWork, RemainingTime | None]]:
        rate = model.per_second
        if rate <= 0:
            return [(each, None) for each in model.waiting]
        shares = present_shares(model.waiting)
        in_flight_of = Counter[tuple[str, int]]()
        for each in model.waiting:
            in_flight_of[each.tenant, each.priority] += math.ceil(model.pending * shares[each.key])
        in_flight = {key: min(max(model.pending * share, 1.0), 1e6) for key, share in shares.items()}
        queued = {
            each.key: max(each.left - in_flight[each.key], 0.0) * self._progress[each.key].work_per_line
            for each in model.waiting
        }
        until = WorkUntil(model.waiting, queued)
        found: list[tuple[UnsettledWork, RemainingTime | None]] = []
        for each in model.waiting:
            done = until.last_line_of(each)
            ahead = done - queued[each.key]
            group = each.tenant, each.priority
            last = min(in_flight_of[group], float(each.left))  # then it is the first of its priority
            found.append((each, self._remaining(model, each, done / rate, ahead, last)))
        return found

    def _remaining(
        self, model: _ModelRate, work: UnsettledWork, sending: float, ahead: float, last: float
    ) -> RemainingTime:
        """Return the forecast for one model of a batch.

        Args:
            model: the measured rate and durations of the model.
            work: the lines of the batch.
            sending: expected seconds until the last line is sent.
            ahead: number of lines of other batches that are sent before the last line.
            last: number of lines of the batch that are in flight when the last line is sent.
        """
        progress, durations = self._progress[work.key], model.durations
        median, high = (longest_remaining(durations, last, probability) for probability in (0.5, 0.9))
        known = 1 / (model.lines_measured + 1) + 1 / progress.certainty + 1 / (work.left + ahead + 1)
        error = math.sqrt(_MODEL_ERROR**2 + durations.variation * known)
        p50 = sending + median
        p90 = p50 + math.hypot(_Z90 * error * sending, high - median)
        return RemainingTime(p50, p90, progress.lines_per_second, ahead)


def window_fit(remaining: RemainingTime, seconds_left: float) -> WindowFit:
    """Return how likely a batch is to be done within `seconds_left`, the rest of its completion window."""
    if remaining.p50 > seconds_left:
        return WindowFit.LATE
    return WindowFit.AT_RISK if remaining.p90 > seconds_left else WindowFit.FITS


def is_news(reported: BatchForecast, forecast: BatchForecast, window: timedelta) -> bool:
    """Return True if a forecast differs enough from the last reported one to be reported as well.

    Each report adds an event to the history of the batch's workflow, so the number of reports is limited.

    Args:
        reported: the last reported forecast.
        forecast: the new forecast.
        window: length of the batch's completion window.
    """
    if forecast.made_at - reported.made_at < max(_SHORTEST_REPORT, window / _REPORTS):
        return False
    expected, _ = reported.seconds_left(forecast.made_at)
    moved = abs(forecast.p50_seconds - expected)
    return forecast.window is not reported.window or moved > max(30.0, 0.1 * forecast.p50_seconds)


def _slowest(models: Sequence[RemainingTime]) -> RemainingTime:
    """Return the forecast of a batch from the forecasts of its models.

    The slowest model decides when the batch ends. The rates of all models are added up.
    """
    slowest = max(models, key=lambda each: each.p50)
    return slowest._replace(
        p90=max(each.p90 for each in models), lines_per_second=sum(each.lines_per_second for each in models)
    )
