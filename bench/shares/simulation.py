"""Simulation of tenants that always wait for permits (rights to have a request in flight) of one model."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import mean

from bench.limits.backend import Clock
from bench.shares.rules import SharingRule
from bench.shares.scenarios import Scenario, Tenant

MINUTE, _STEP = 60.0, 10.0


@dataclass(frozen=True)
class ShareResult:
    """Result of one run, or of several runs.

    Attributes:
        evenness: mean of Jain's index over all periods of one minute. The index shows how evenly tenants
            share the permits (rights to have a request in flight), relative to their weights. 1 is perfectly
            even.
        least_even: lowest value of Jain's index.
        shares: fraction of the permits that each tenant has before new tenants come.
        wait: longest time in seconds for which a new tenant waits for its first permit; None if the scenario
            has no new tenants.
    """

    evenness: float
    least_even: float
    shares: tuple[float, ...]
    wait: float | None


class Simulation:
    """A simulation of tenants that always have lines to send to one model.

    It uses a virtual clock that jumps from event to event.
    """

    def __init__(self, scenario: Scenario, rule: SharingRule, seed: int) -> None:
        self._scenario, self._rule, self._random = scenario, rule, Random(seed)
        self._clock, self._used = Clock(), 0
        self._waiting: dict[str, Tenant] = {}
        self._held: dict[str, list[tuple[float, float]]] = defaultdict(list)  # start and end of each request
        self._longest = 0.0  # seconds of the longest request
        self._first: dict[str, float] = {}  # time of the first permit, by tenant

    def run(self) -> ShareResult:
        scenario = self._scenario
        for tenant in scenario.tenants:
            self._clock.at(tenant.since, lambda tenant=tenant: self._begin(tenant))
        for since in {tenant.since for tenant in scenario.tenants}:
            self._clock.at(since, self._grant)  # after all that begin at this time
        self._clock.run(scenario.duration)
        minutes = [
            self._evenness(start * _STEP) for start in range(int((scenario.duration - MINUTE) / _STEP) + 1)
        ]
        newcomers = [tenant for tenant in scenario.tenants if tenant.since >= 1]
        alone = min((tenant.since for tenant in newcomers), default=scenario.duration)
        work = [self._work(tenant, 0, alone) for tenant in scenario.tenants if tenant not in newcomers]
        waits = [self._first.get(tenant.name, scenario.duration) - tenant.since for tenant in newcomers]
        return ShareResult(
            mean(minutes), min(minutes), tuple(one / sum(work) for one in work), max(waits, default=None)
        )

    def _begin(self, tenant: Tenant) -> None:
        self._rule.start_waiting(tenant.name, tenant.weight, self._waiting, self._clock.now)
        self._waiting[tenant.name] = tenant

    def _grant(self) -> None:
        now = self._clock.now
        while self._used < self._scenario.permits and self._waiting:
            tenant = self._waiting[self._rule.next_tenant(self._waiting, now)]
            self._rule.grant(tenant.name, tenant.weight, now)
            self._used += 1
            self._first.setdefault(tenant.name, now)
            seconds = tenant.seconds(self._random)
            self._longest = max(self._longest, seconds)
            self._held[tenant.name].append((now, now + seconds))
            self._clock.after(seconds, lambda tenant=tenant, seconds=seconds: self._end(tenant, seconds))

    def _end(self, tenant: Tenant, seconds: float) -> None:
        self._used -= 1
        self._rule.release(tenant.name, self._clock.now, seconds=seconds, is_contended=True)
        self._grant()

    def _evenness(self, start: float) -> float:
        """Return how evenly tenants share the permits in the minute after `start`, as Jain's index.

        1 is perfectly even. Only tenants that have lines to send during the whole minute count.
        """
        tenants = [tenant for tenant in self._scenario.tenants if tenant.since <= max(start, 1.0)]
        return jains_index([self._work(tenant, start, start + MINUTE) / tenant.weight for tenant in tenants])

    def _work(self, tenant: Tenant, since: float, until: float) -> float:
        """Return for how many seconds requests of the tenant were in flight between `since` and `until`.

        The seconds of requests that were in flight at the same time are added up.
        """
        held = self._held[tenant.name]  # by start
        first = bisect_left(held, (since - self._longest,))
        inside = held[first : bisect_left(held, (until,))]
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in inside)


def jains_index(values: list[float]) -> float:
    """Return how even the values are, as Jain's index from 0 to 1. Equal values give 1.

    If one of n values is positive and all others are 0, the result is 1/n.
    """
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def runs(scenario: Scenario, make: Callable[[], SharingRule], seeds: range) -> ShareResult:
    """Simulate the scenario once for each seed, with a new rule from `make`.

    Return the mean of the results. `least_even` is the minimum and `wait` is the maximum of all runs.
    """
    results = [Simulation(scenario, make(), seed).run() for seed in seeds]
    waits = [result.wait for result in results if result.wait is not None]
    return ShareResult(
        mean(result.evenness for result in results),
        min(result.least_even for result in results),
        tuple(mean(shares) for shares in zip(*(result.shares for result in results), strict=True)),
        max(waits, default=None),
    )
