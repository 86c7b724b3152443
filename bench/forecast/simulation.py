"""Simulates batches of one model, and compares forecasts with their actual ends."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from random import Random
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.batch import StartFit
from batchwright.rules.dispatch.fair_queue import FairShare
from batchwright.rules.forecast.end_of_live_batches import Forecaster
from batchwright.rules.forecast.end_of_new_batch import NewBatchForecast, forecast_new_batch
from batchwright.rules.forecast.model_queue import ModelSpeed, RemainingTime
from batchwright.rules.forecast.work_ahead import FOR_OTHERS, UnsettledWork
from batchwright.rules.worker_stats import UpstreamTraffic
from bench.forecast.scenarios import Batch, Scenario
from bench.limits.backend import Clock

MODEL, INTERVAL_SECONDS = "m", 15.0  # interval at which control workers make forecasts
STAGES = (0.1, 0.5, 0.8)  # fractions of a batch's lines after which its forecast is judged
_WINDOWS = (600.0, 1800.0, 7200.0)  # seconds; the window of a batch is one of them by chance
_TURN_EVERY = round(1 / FOR_OTHERS)
_LEFT = attrgetter("left")


class JudgedForecast(NamedTuple):
    """A forecast of the remaining seconds of a batch, and the actual remaining seconds.

    The forecast was made when the fraction `stage` of the lines was done. The batch should end within `p50`
    seconds with a probability of 50 %, and within `p90` seconds with 90 %.
    """

    stage: float
    p50: float
    p90: float
    actual: float

    @property
    def error(self) -> float:
        return abs(self.p50 - self.actual) / self.actual


class JudgedStart(NamedTuple):
    """A forecast that was made at the beginning of a batch (`expected`), and the actual duration.

    `actual` is the duration of the batch, and `window` its completion window, both in seconds.
    """

    expected: NewBatchForecast
    window: float
    actual: float

    @property
    def fit(self) -> StartFit:
        return self.expected.fit(self.window)


class Judged(NamedTuple):
    """The forecasts of all batches, with the actual times.

    `starts` has the forecasts from the beginning of batches, and `forecasts` has those for running batches.
    """

    forecasts: list[JudgedForecast]
    starts: list[JudgedStart]


@dataclass(eq=False)
class _Live:
    """A batch in the simulation: its progress, its end, and the forecasts that were made for it."""

    name: str
    batch: Batch
    window: float
    unsent: int
    left: int  # number of lines that are not settled
    ended_at: float = 0.0
    expected: NewBatchForecast | None = None
    forecasts: dict[float, tuple[float, RemainingTime]] = field(
        default_factory=dict[float, tuple[float, RemainingTime]]
    )


class Simulation:
    """A simulation of the batches of one model, on a virtual clock that jumps from event to event.

    Tenants share the permits (allowed requests in flight) by weight. If a tenant has twice the weight of
    another tenant, its requests are in flight for twice the time in total. Usually, a tenant's batch with the
    fewest lines left is sent first (see `_next_batch`).
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._random = scenario, Random(seed)
        self._windows = Random(f"windows {seed}")
        self._clock, self._shares, self._forecaster = Clock(), FairShare(), Forecaster()
        self._live: dict[str, _Live] = {}
        self._waiting: dict[str, list[_Live]] = defaultdict(list)  # by tenant, in turn
        self._in_flight, self._requests, self._seconds, self._squares = 0, 0, 0.0, 0.0
        self._ended: list[_Live] = []
        self._grants = 0
        self._speeds: dict[str, ModelSpeed] = {}

    def run(self) -> Judged:
        batches = self._scenario.batches(self._random)
        for _ in range(self._scenario.history):
            self._count(self._random.choice(batches).seconds(self._random))
        for number, batch in enumerate(batches):
            window = self._windows.choice(_WINDOWS)
            live = _Live(f"batch_{number}", batch, window, unsent=batch.lines, left=batch.lines)
            self._clock.at(batch.since, lambda live=live: self._begin(live))
        # The first forecast is at a random time, because control workers do not wait for batches.
        self._clock.at(self._random.uniform(0, INTERVAL_SECONDS), self._observe)
        while len(self._ended) < len(batches):
            self._clock.run(self._clock.now + INTERVAL_SECONDS)
        forecasts = [
            JudgedForecast(stage, remaining.p50, remaining.p90, live.ended_at - at)
            for live in self._ended
            for stage, (at, remaining) in live.forecasts.items()
        ]
        starts = [
            JudgedStart(live.expected, live.window, live.ended_at - live.batch.since)
            for live in self._ended
            if live.expected is not None
        ]
        return Judged(forecasts, starts)

    def _begin(self, live: _Live) -> None:
        others = list(self._work())
        self._live[live.name] = live
        live.expected = forecast_new_batch([_unsettled(live)], others, self._speeds)
        tenant = live.batch.tenant
        others = [name for name, batches in self._waiting.items() if batches]
        if tenant not in others:
            self._shares.start_waiting(tenant, live.batch.weight, others, self._clock.now)
        self._waiting[tenant].append(live)
        self._grant()

    def _grant(self) -> None:
        now = self._clock.now
        while self._in_flight < self._scenario.permits:
            waiting = [name for name, batches in self._waiting.items() if batches]
            if not waiting:
                return
            tenant = self._shares.next_tenant(waiting, now)
            live = self._next_batch(self._waiting[tenant])
            self._shares.grant(tenant, live.batch.weight, now)
            live.unsent -= 1
            if live.unsent:
                self._waiting[tenant].append(live)
            self._in_flight += 1
            slower = self._scenario.slower if now >= self._scenario.slower_since else 1.0
            seconds = live.batch.seconds(self._random) * slower
            self._clock.after(seconds, lambda live=live, seconds=seconds: self._end(live, seconds))

    def _next_batch(self, batches: list[_Live]) -> _Live:
        """Choose the batch that sends the next line. Remove the batch from `batches`, and return the batch.

        Usually, choose the batch with the fewest lines left. In every fifth call, choose the batch that has
        sent nothing for the longest time.
        """
        self._grants += 1
        if len(batches) == 1 or self._grants % _TURN_EVERY == 0:
            return batches.pop(0)
        return batches.pop(batches.index(min(batches, key=_LEFT)))

    def _end(self, live: _Live, seconds: float) -> None:
        now, tenant = self._clock.now, live.batch.tenant
        self._in_flight -= 1
        self._count(seconds)
        self._shares.release(tenant, now, is_contended=any(self._waiting.values()))
        live.left -= 1
        if not live.left:
            live.ended_at = now
            self._ended.append(self._live.pop(live.name))
        self._grant()

    def _count(self, seconds: float) -> None:
        self._requests += 1
        self._seconds += seconds
        self._squares += seconds * seconds

    def _observe(self) -> None:
        now = self._clock.now
        traffic = UpstreamTraffic(
            model=MODEL,
            backend="b",
            requests=self._requests,
            seconds=self._seconds,
            squared_seconds=self._squares,
            pending=self._in_flight,
        )
        self._forecaster.observe(list(self._work()), [traffic], now)
        self._speeds |= self._forecaster.speeds()
        for name, remaining in self._forecaster.remaining().items():
            live = self._live[name]
            done = (live.batch.lines - live.left) / live.batch.lines
            for stage in STAGES:
                if done >= stage and stage not in live.forecasts:
                    live.forecasts[stage] = now, remaining
        self._clock.after(INTERVAL_SECONDS, self._observe)

    def _work(self) -> Iterable[UnsettledWork]:
        for live in self._live.values():
            yield _unsettled(live)


def _unsettled(live: _Live) -> UnsettledWork:
    batch, settled = live.batch, live.batch.lines - live.left
    return UnsettledWork(batch.tenant, live.name, MODEL, settled, live.left, batch.since, batch.weight)


@cache
def judged(scenario: Scenario, seeds: range) -> Judged:
    """Simulate the scenario once for each seed, and return all forecasts with the actual times.

    A repeated call returns the result of the first call.
    """
    runs = [Simulation(scenario, seed).run() for seed in seeds]
    return Judged(
        [each for run in runs for each in run.forecasts], [each for run in runs for each in run.starts]
    )
