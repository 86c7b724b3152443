"""The simulated scenarios: which batches a tenant creates, and when."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

HOUR = 3600.0
PERMITS = 64  # a permit allows one request in flight
MEDIAN_SECONDS = 2.0  # of a response; the times are lognormal with sigma 1
SIZES = {"small": (20, 60), "medium": (200, 600), "large": (2_000, 6_000)}  # lines, at least and at most


class Arrival(NamedTuple):
    """A batch that is created `at` seconds after the start of the simulation.

    `window` is its completion window, the number of seconds after which the batch expires.
    """

    at: float
    size: str
    lines: int
    window: float
    priority: int = 3


@dataclass(frozen=True)
class Scenario:
    """The batches that a tenant creates.

    Attributes:
        groups: names of the groups of batches. The mean duration of each group is shown. If the batches have
            different priorities, there is a group for each priority. Otherwise, there is a group for each
            size.
    """

    name: str
    arrivals: Callable[[Random], list[Arrival]]
    groups: tuple[str, ...] = ("small", "medium", "large")


def mixed(random: Random, load: float, windows: dict[str, float], *, hours: float) -> list[Arrival]:
    """Return batches of three sizes that are created at random times.

    Args:
        load: number of requests in flight that all batches together need, divided by the allowed number
            `PERMITS`. It can be above 1.
        windows: completion window in seconds for each size, `small`, `medium` and `large`.
        hours: hours during which batches are created.
    """
    mean_seconds = MEDIAN_SECONDS * math.exp(0.5)
    chances = {"small": 0.7, "medium": 0.25, "large": 0.05}
    mean_lines = sum(chance * sum(SIZES[size]) / 2 for size, chance in chances.items())
    every = mean_lines * mean_seconds / (PERMITS * load)
    now, arrivals = 0.0, list[Arrival]()
    while (now := now + random.expovariate(1 / every)) < hours * HOUR:
        size = random.choices(list(chances), list(chances.values()))[0]
        lines = random.randint(*SIZES[size])
        arrivals.append(Arrival(now, size, lines, windows[size]))
    return arrivals


def tight_and_loose(random: Random) -> list[Arrival]:
    """Return two large batches with completion windows of 15 minutes, and many with windows of 24 hours.

    The batches with windows of 24 hours have three sizes.
    """
    ordinary = mixed(random, 0.7, {"small": 24 * HOUR, "medium": 24 * HOUR, "large": 24 * HOUR}, hours=1)
    urgent = [Arrival(600.0, "urgent", 5_000, 900.0), Arrival(1_800.0, "urgent", 5_000, 900.0)]
    return sorted([*ordinary, *urgent])


def three_priorities(random: Random) -> list[Arrival]:
    """Return batches of equal size with random priorities, created during one hour.

    They need 120 % of `PERMITS` (allowed requests in flight).
    """
    every = 400 * MEDIAN_SECONDS * math.exp(0.5) / (PERMITS * 1.2)
    now, arrivals = 0.0, list[Arrival]()
    while (now := now + random.expovariate(1 / every)) < HOUR:
        arrivals.append(Arrival(now, "medium", 400, 24 * HOUR, random.choice((1, 3, 5))))
    return arrivals


LONG = {"small": 24 * HOUR, "medium": 24 * HOUR, "large": 24 * HOUR}
TIGHT = {"small": 300.0, "medium": 1_200.0, "large": HOUR}
SCENARIOS = (
    Scenario(
        "Many small batches and few large ones, which need 90 % of the permits",
        lambda random: mixed(random, 0.9, LONG, hours=2),
    ),
    Scenario(
        "The same, but they need 120 %, and their windows are 5, 20 and 60 minutes",
        lambda random: mixed(random, 1.2, TIGHT, hours=2),
    ),
    Scenario(
        "Two batches of 5,000 lines with windows of 15 minutes, among others with windows of 24 hours",
        tight_and_loose,
        groups=("small", "medium", "large", "urgent"),
    ),
    Scenario(
        "Batches of 400 lines with priorities 1, 3 and 5, which need 120 % for an hour",
        three_priorities,
        groups=("priority 1", "priority 3", "priority 5"),
    ),
)
