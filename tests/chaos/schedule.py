"""Which disturbance comes when: a function of the seed alone."""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    KILL_WORKER = "worker killed"
    KILL_ALL_WORKERS = "all workers killed"
    TERM_WORKER = "worker told to stop"
    FREEZE_WORKER = "worker frozen"
    KILL_API = "API killed"
    KILL_TEMPORAL = "Temporal killed"
    KILL_POSTGRES = "PostgreSQL killed"
    OUTAGE = "model answers 503"
    HANG = "model hangs"
    CUT_BACKEND = "backend cut"
    REFUSE_BACKEND = "backend refuses"
    STALL_BACKEND = "backend half-open"
    CUT_TEMPORAL = "Temporal cut"
    STALL_TEMPORAL = "Temporal half-open"
    CUT_POSTGRES = "PostgreSQL cut"
    STALL_POSTGRES = "PostgreSQL half-open"
    DELAY_POSTGRES = "PostgreSQL slow"


# How often each comes, and for how many seconds it lasts (0: an instant).
_MIX: dict[Kind, tuple[int, tuple[float, float]]] = {
    Kind.KILL_WORKER: (6, (0, 0)),
    Kind.KILL_ALL_WORKERS: (2, (0, 0)),
    Kind.TERM_WORKER: (3, (0, 0)),
    Kind.FREEZE_WORKER: (2, (12, 18)),
    Kind.KILL_API: (2, (0, 0)),
    Kind.KILL_TEMPORAL: (2, (0, 0)),
    Kind.KILL_POSTGRES: (2, (0, 0)),
    Kind.OUTAGE: (2, (3, 15)),
    Kind.HANG: (1, (2, 5)),
    Kind.CUT_BACKEND: (2, (0, 0)),
    Kind.REFUSE_BACKEND: (1, (1, 6)),
    Kind.STALL_BACKEND: (1, (1, 5)),
    Kind.CUT_TEMPORAL: (2, (1, 4)),
    Kind.STALL_TEMPORAL: (1, (5, 15)),
    Kind.CUT_POSTGRES: (2, (1, 4)),
    Kind.STALL_POSTGRES: (1, (5, 12)),
    Kind.DELAY_POSTGRES: (1, (3, 6)),
}
_PAUSE_SECONDS = (1.0, 5.0)


class Disturbance(NamedTuple):
    """`choice` decides which worker or model is meant, as a fraction of the list."""

    pause: float
    kind: Kind
    seconds: float
    choice: float


def disturbances(seed: int) -> Iterator[Disturbance]:
    """Without end."""
    chance = random.Random(seed)
    kinds = list(_MIX)
    weights = [weight for weight, _ in _MIX.values()]
    while True:
        (kind,) = chance.choices(kinds, weights)
        shortest, longest = _MIX[kind][1]
        yield Disturbance(
            chance.uniform(*_PAUSE_SECONDS), kind, chance.uniform(shortest, longest), chance.random()
        )
