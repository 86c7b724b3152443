"""The simulated scenarios: batches, duration of their requests, and disturbances."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bench.shares.scenarios import Seconds, about, lognormal, one_in_ten_takes


@dataclass(frozen=True)
class Batch:
    """A simulated batch. It begins `since` seconds after the start of the simulation.

    `seconds` returns a random duration for a request.
    """

    tenant: str
    lines: int
    seconds: Seconds
    since: float = 0.0
    weight: float = 1.0


Batches = Callable[[Random], list[Batch]]


@dataclass(frozen=True)
class Scenario:
    """A situation to simulate: batches of one model.

    Attributes:
        batches: function that returns new batches for each run.
        permits: number of permits. A permit is the right to have one request in flight.
        slower: factor for the duration of the requests that begin `slower_since` seconds after the start of
            the simulation or later.
        history: number of requests that the model has answered before the start.
    """

    name: str
    batches: Batches
    permits: int = 64
    slower: float = 1.0
    slower_since: float = 0.0
    history: int = 500


def _one(lines: int, seconds: Seconds) -> Batches:
    return lambda random: [Batch("a", lines, seconds)]


def _ten(random: Random) -> list[Batch]:
    return [
        Batch("a", random.choice((1000, 2000, 5000, 10_000)), lognormal(3.0), since=random.uniform(0, 300))
        for _ in range(10)
    ]


def _unequal(random: Random) -> list[Batch]:
    return [Batch("long", 5000, lognormal(8.0)), Batch("short", 30_000, lognormal(0.8))]


def _weighted(random: Random) -> list[Batch]:
    return [Batch("a", 10_000, lognormal(3.0)), Batch("b", 10_000, lognormal(3.0), weight=3.0)]


def _arriving(interval: float) -> Batches:
    """Return a function that returns 20 batches of five tenants.

    The batches start at random times, on average `interval` seconds apart. If the interval is 540 s, the
    batches need about two thirds of 64 permits (allowed requests in flight).
    """

    def made(random: Random) -> list[Batch]:
        batches: list[Batch] = []
        since = 0.0
        while len(batches) < 20:
            lines, median = random.choice((1000, 3000, 10_000)), random.choice((1.0, 3.0, 5.0))
            batches.append(Batch(f"t{random.randrange(5)}", lines, lognormal(median), since))
            since += random.expovariate(1 / interval)
        return batches

    return made


_TEN = Scenario("Ten batches of one tenant, 1,000 to 10,000 lines, begun within 5 minutes", _ten)
_ARRIVING = Scenario(
    "20 batches of five tenants that are created by chance, two thirds of capacity", _arriving(540.0)
)
SCENARIOS = (
    Scenario("One batch of 10,000 lines, answers of 3 s", _one(10_000, about(3.0))),
    Scenario(
        "One batch of 10,000 lines, lognormal answers (median 3 s, sigma 1)", _one(10_000, lognormal(3.0))
    ),
    Scenario("The same, and nothing is known of the model before", _one(10_000, lognormal(3.0)), history=0),
    Scenario(
        "One batch of 10,000 lines, one answer in ten takes 60 s, all others 1 s",
        _one(10_000, one_in_ten_takes(60.0, 1.0)),
    ),
    _TEN,
    Scenario("Two tenants of equal weight, lognormal answers of median 8 s and 0.8 s", _unequal),
    Scenario("Two tenants with weights 1 and 3, the same work", _weighted),
    _ARRIVING,
    Scenario(
        "One batch of 10,000 lines; answers take a fifth longer from the fifth minute",
        _one(10_000, lognormal(3.0)),
        slower=1.2,
        slower_since=240.0,
    ),
    Scenario("One batch of 1,000 lines", _one(1000, lognormal(3.0))),
)

# Batches that begin while others are sent, so that the speed of the model is known.
STARTS = (
    _ARRIVING,
    Scenario("The same batches, one and a half times the capacity", _arriving(0.44 * 540.0)),
    _TEN,
)
