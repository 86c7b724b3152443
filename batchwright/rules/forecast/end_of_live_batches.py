"""Forecast when live batches will be done, from the remaining lines and the rate at which lines settle.

The forecast assumes that tenants divide the capacity of a model by weight, and that the batches of a tenant
divide the tenant's part. It also assumes that no backend is idle. It does not consider batches that will be
created later.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from batchwright.contracts.temporal_payloads.batch import BatchForecast, WindowFit
from batchwright.rules.forecast.model_queue import (
    PRIOR_LINES,
    LineWork,
    ModelSpeed,
    QueueForecast,
    RemainingTime,
)
from batchwright.rules.forecast.request_durations import RequestDurations
from batchwright.rules.forecast.steady_rate import SteadyRate
from batchwright.rules.forecast.work_ahead import ModelOfBatch, UnsettledWork, present_shares
from batchwright.rules.worker_stats import UpstreamTraffic

_RATE_SECONDS = 120.0  # a measurement so old counts about a third as much as a new one
_PAST_WEIGHT = 0.05  # weight of earlier measurements after a time without waiting lines
_MOST_AHEAD = 2.0  # maximum correction for requests that began recently
_REPORTS = 200  # maximum number of forecasts per completion window that are reported to the workflow
_SHORTEST_REPORT = timedelta(seconds=60)


class _Progress:
    """An estimate of the work of a batch's lines for one model, compared with the model's average line.

    The estimate compares two numbers:

    - the lines of the batch that got a result;
    - the average lines that would have got a result with the batch's part of the model's capacity.
    """

    def __init__(self, settled: int, lines: float, seconds: float) -> None:
        """Start with the present numbers of a batch.

        Args:
            settled: number of lines with a stored result.
            lines: number of lines that got their result in the recent period.
            seconds: length of the recent period, in seconds.
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
        """Work of one line of this batch, relative to an average line of the model, which has the work 1."""
        return (self._expected + PRIOR_LINES) / (self._actual + PRIOR_LINES)

    @property
    def line_work(self) -> LineWork:
        return LineWork(self.work_per_line, self._actual + PRIOR_LINES, self.lines_per_second)


class _ModelRate:
    """Measurements of one model: how fast its lines settle (get a result), and how long its requests take.

    The speed is counted in average lines per second: a line with twice the work of an average line counts as
    two lines. It is measured only while lines wait to be sent.
    """

    def __init__(self) -> None:
        self.durations, self.steady = RequestDurations(), SteadyRate()
        self.pending = 0
        self.waiting: list[UnsettledWork] = []  # unsettled work at the last measurement
        self.measured_at = 0.0
        self._work = self._seconds = 0.0  # of the recent past

    @property
    def is_busy(self) -> bool:
        """True if, at the last measurement, the model had more lines left than requests in flight."""
        return sum(each.left for each in self.waiting) > self.pending

    def restart(self) -> None:
        """Begin a new measurement after an idle period.

        The new lines may be more or less work than earlier lines. So earlier measurements keep only a small
        weight.
        """
        self._work *= _PAST_WEIGHT
        self._seconds *= _PAST_WEIGHT
        self.steady.reset()

    def record(self, done: float, started: int, passed: float) -> None:
        """Record how much work was done in a period in which lines were always waiting.

        Args:
            done: work of the lines that got a result, as a number of average lines.
            started: by how much the number of requests in flight has grown in this period. A part of the
                work of these requests is already done, and is added to `done`. If all requests take the same
                time, half of the work is added. If durations differ, less is added. If durations differ very
                much, mostly short requests have ended, and the added number is negative.
            passed: length of the period, in seconds.
        """
        if passed <= 0:
            return
        partly_done = started * max(1.0 - self.durations.variation, -_MOST_AHEAD) / 2
        decay = math.exp(-passed / _RATE_SECONDS)
        self._work = self._work * decay + max(done + partly_done, done / 2)
        self._seconds = self._seconds * decay + passed

    @property
    def speed(self) -> ModelSpeed:
        """The speed of the model. It includes the number of requests that are in flight now."""
        return ModelSpeed(
            lines_per_second=self.per_second,
            lines_measured=self._work,
            pending=self.pending,
            mean=self.durations.mean,
            variation=self.durations.variation,
        )

    @property
    def steady_speed(self) -> ModelSpeed | None:
        """The speed that a new batch can expect; None if too little is known, or if the model is not busy."""
        rate = self.steady.per_second(self.durations.mean)
        if rate is None or not self.is_busy:
            return None
        in_flight = rate * self.durations.mean
        return self.speed.model_copy(
            update={"lines_per_second": rate, "lines_measured": self.steady.lines, "pending": in_flight}
        )

    @property
    def per_second(self) -> float:
        """Number of average lines that settle (get a result) per second; 0 if it is not known.

        A line with twice the work of an average line counts as two lines.
        """
        if self._work > 0 and self._seconds > 0:
            return self._work / self._seconds
        return self.pending / self.durations.mean if self.durations.mean > 0 else 0.0


class Forecaster:
    """A forecaster of when each live batch will end, from the progress that each call of `observe` reports.

    Lines of different batches may be different amounts of work. The forecaster learns these amounts from the
    progress. Example: if fewer lines of a batch get a result than expected, each of these lines is more work.
    """

    def __init__(self) -> None:
        self._models: dict[str, _ModelRate] = defaultdict(_ModelRate)
        self._progress: dict[ModelOfBatch, _Progress] = {}
        self._at: float | None = None

    def observe(self, work: Sequence[UnsettledWork], traffic: Iterable[UpstreamTraffic], now: float) -> None:
        """Update all forecasts from the current state. Call this at regular intervals.

        Args:
            work: for each model of each live batch, the number of lines with and without a result. Paused and
                cancelled batches are left out.
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

    def speeds(self) -> dict[str, ModelSpeed]:
        """Return the speeds that new batches can expect, by model, as of the last call of `observe`.

        A model is left out if its speed is not known well enough, or if no lines wait for it.
        """
        speeds = {name: model.steady_speed for name, model in self._models.items()}
        return {name: speed for name, speed in speeds.items() if speed is not None}

    # Learning

    def _observe_traffic(self, traffic: Iterable[UpstreamTraffic], passed: float) -> Mapping[str, int]:
        pending: dict[str, int] = defaultdict(int)
        for each in traffic:
            self._models[each.model].durations.record(each, passed)
            pending[each.model] += each.pending
        return pending

    def _observe_model(self, model: _ModelRate, work: list[UnsettledWork], pending: int, now: float) -> None:
        passed = now - model.measured_at
        settled = self._settled_lines(model, work, passed)
        count = sum(settled.values())
        done = sum(lines * self._progress[key].work_per_line for key, lines in settled.items())
        expected = self._expected_lines(model, work, done)
        longest = 0.0  # longest time for which a new batch has been in progress
        for each in work:
            progress = self._progress.get(each.key)
            if progress is None:
                age = max(now - each.began, 0.0)
                recent = min(age, _RATE_SECONDS if not model.is_busy else passed)
                lines = each.settled * recent / age if age else 0.0
                progress = self._progress[each.key] = _Progress(each.settled, lines, recent)
                done, count, longest = done + lines, count + lines, max(longest, recent)
            else:
                progress.record(each.settled, expected.get(each.key, 0.0), passed)
        if sum(each.left for each in work) > pending:
            if model.is_busy:
                limited = all(each.limited for each in work)
                model.steady.record(count, pending, passed, limited=limited)
            else:
                passed = longest
                model.restart()
            model.record(done, pending - model.pending, passed)
        model.waiting, model.pending, model.measured_at = work, pending, now

    def _expected_lines(
        self, model: _ModelRate, work: Sequence[UnsettledWork], done: float
    ) -> dict[ModelOfBatch, float]:
        """Return how many lines each batch would have settled (got a result) if its lines were average.

        The work that was done since the last call of `observe` is divided in two steps:

        1. If a priority of a tenant had 30 % of the model's capacity at that call, it gets 30 % of the work.
        2. Within a priority, each batch gets a part in proportion to the batch's lines that really got a
           result. The order of the batches is not used, because the order may have changed since that call.

        Args:
            model: measurements of the model, with its batches at the last call.
            work: the model's batches now.
            done: work of all lines of the model that got a result since that call. A line of average work
                counts as 1.
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

    def _settled_lines(
        self, model: _ModelRate, work: Sequence[UnsettledWork], passed: float
    ) -> dict[ModelOfBatch, float]:
        """Return how many lines of each batch were settled (got a result) since the last call of `observe`.

        A batch that was not known at the last call is left out. A batch that is missing in `work` may be
        complete, paused or cancelled. Its remaining lines count as settled, but at most as many as the batch
        usually settles in `passed` seconds.

        Args:
            model: measurements of the model, with its batches at the last call.
            work: the model's batches now.
            passed: seconds since the last call.
        """
        present = {each.key: each for each in work}
        lines: dict[ModelOfBatch, float] = {}
        for before in model.waiting:
            after, progress = present.get(before.key), self._progress[before.key]
            if after is None:
                lines[before.key] = min(float(before.left), progress.lines_per_second * passed)
            else:
                lines[before.key] = max(after.settled - before.settled, 0)
        return lines

    # Forecast

    def _remaining_of_model(self, model: _ModelRate) -> list[tuple[UnsettledWork, RemainingTime | None]]:
        if model.per_second <= 0:
            return [(each, None) for each in model.waiting]
        known = {each.key: self._progress[each.key].line_work for each in model.waiting}
        forecast = QueueForecast(model.speed, model.waiting, known)
        return [(each, forecast.remaining(each)) for each in model.waiting]


def window_fit(remaining: RemainingTime, seconds_left: float) -> WindowFit:
    """Return LATE, AT_RISK or FITS: whether a batch will be done within its completion window.

    The completion window is the time that a batch may take. FITS means that the batch is done in time with a
    probability of at least 90 %. LATE means that this probability is below 50 %. AT_RISK means that it is
    between them.

    Args:
        remaining: forecast of the batch.
        seconds_left: rest of the completion window, in seconds.
    """
    if remaining.p50 > seconds_left:
        return WindowFit.LATE
    return WindowFit.AT_RISK if remaining.p90 > seconds_left else WindowFit.FITS


def must_report(reported: BatchForecast, forecast: BatchForecast, window: timedelta) -> bool:
    """Return True if a new forecast must be reported to the batch's workflow.

    Both conditions are necessary: the new forecast differs much from the last reported forecast, and the last
    report is old enough. Each report adds an event to the workflow's history, so reports are limited.

    Args:
        reported: the last reported forecast.
        forecast: the new forecast.
        window: the time that the batch may take. The longer it is, the fewer reports are made per hour.
    """
    if forecast.made_at - reported.made_at < max(_SHORTEST_REPORT, window / _REPORTS):
        return False
    expected, _ = reported.seconds_left(forecast.made_at)
    moved = abs(forecast.p50_seconds - expected)
    return forecast.window is not reported.window or moved > max(30.0, 0.1 * forecast.p50_seconds)


def _slowest(models: Sequence[RemainingTime]) -> RemainingTime:
    """Combine the forecasts for the models of one batch into the forecast of the batch.

    The slowest model decides when the batch ends. The lines per second of all models are added up.
    """
    slowest = max(models, key=lambda each: each.p50)
    return slowest._replace(
        p90=max(each.p90 for each in models), lines_per_second=sum(each.lines_per_second for each in models)
    )
