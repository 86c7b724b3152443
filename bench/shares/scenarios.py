"""The simulated scenarios: tenants, duration of their requests, and number of requests in flight."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Seconds = Callable[[Random], float]


def about(seconds: float, spread: float = 0.1) -> Seconds:
    return lambda random: seconds * random.uniform(1 - spread, 1 + spread)


def lognormal(median: float, sigma: float = 1.0) -> Seconds:
    mu = math.log(median)
    return lambda random: random.lognormvariate(mu, sigma)


def one_in_ten_takes(seconds: float, otherwise: float) -> Seconds:
    return lambda random: seconds if random.random() < 0.1 else otherwise


@dataclass(frozen=True)
class Tenant:
    """A tenant that always has lines to send, starting `since` seconds after the start of the simulation.

    `seconds` returns a random duration for a request.
    """

    name: str
    seconds: Seconds
    weight: float = 1.0
    since: float = 0.0


@dataclass(frozen=True)
class Scenario:
    name: str
    tenants: tuple[Tenant, ...]
    permits: int = 64
    duration: float = 300.0  # seconds


SCENARIOS = (
    Scenario(
        "Two tenants, answers of 4 s and of 0.2 s; a third, of 0.2 s, begins after 100 s",
        (Tenant("long", about(4.0)), Tenant("short", about(0.2)), Tenant("new", about(0.2), since=100.0)),
    ),
    Scenario(
        "The same with lognormal answers (sigma 1) of median 4 s and 0.2 s",
        (
            Tenant("long", lognormal(4.0)),
            Tenant("short", lognormal(0.2)),
            Tenant("new", lognormal(0.2), since=100.0),
        ),
    ),
    Scenario(
        "Four tenants with equal lognormal answers (median 3 s, sigma 1); the fourth begins after 100 s",
        (
            *(Tenant(name, lognormal(3.0)) for name in ("a", "b", "c")),
            Tenant("new", lognormal(3.0), since=100.0),
        ),
    ),
    Scenario(
        "Weights 1 and 3: the answers of the first take 4 s, those of the second 0.2 s",
        (Tenant("weight 1", about(4.0)), Tenant("weight 3", about(0.2), 3.0)),
    ),
    Scenario(
        "One in ten answers of the first tenant takes a minute, all others 1 s",
        (Tenant("uneven", one_in_ten_takes(60.0, 1.0)), Tenant("even", about(1.0))),
        duration=600.0,
    ),
    Scenario(
        "Jobs of 2 to 4 minutes beside answers of 1 s",
        (Tenant("short", about(1.0)), Tenant("jobs", about(180.0, 1 / 3), since=0.5)),
        duration=900.0,
    ),
    Scenario(
        "Seven tenants on 20 permits, lognormal answers of median 0.1 to 8 s",
        tuple(Tenant(f"{median:g} s", lognormal(median)) for median in (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)),
        permits=20,
    ),
    Scenario(
        "Twelve tenants on 4 permits: answers of 0.5 s, one tenant's take 4 s",
        (Tenant("long", about(4.0)), *(Tenant(f"t{number}", about(0.5)) for number in range(11))),
        permits=4,
    ),
)
