"""Kinds of disturbances, and random sequences of disturbances that follow from a seed."""

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import StrEnum
from itertools import islice
from typing import NamedTuple


class Kind(StrEnum):
    KILL_WORKER = "worker killed"
    KILL_ALL_WORKERS = "all workers killed"
    KILL_INGESTING = "all workers killed while a batch is ingested"
    KILL_RUNNING = "all workers killed while batches run"
    KILL_FINALIZING = "all workers killed while a batch is finalized"
    KILL_CANCELLING = "all workers killed while a batch is cancelled"
    TERM_WORKER = "worker stopped by SIGTERM"
    TERM_ALL_WORKERS = "all workers stopped by SIGTERM"
    FREEZE_WORKER = "worker frozen"
    KILL_API = "API killed"
    KILL_TEMPORAL = "Temporal killed"
    KILL_POSTGRES = "PostgreSQL killed"
    KILL_POSTGRES_TWICE = "PostgreSQL killed, and again while it recovers"
    FREEZE_API = "API frozen"
    FREEZE_TEMPORAL = "Temporal frozen"
    FREEZE_POSTGRES = "PostgreSQL frozen"
    KILL_EVERYTHING = "workers, API, Temporal and PostgreSQL killed together"
    OUTAGE = "model answers 503"
    HANG = "model hangs"
    LIMIT = "model answers 429"
    SLOW = "model slow"
    CUT_BACKEND = "backend cut"
    REFUSE_BACKEND = "backend refuses"
    LOSE_BACKEND = "backend down for a minute or two"
    STALL_BACKEND = "backend half-open"
    CUT_TEMPORAL = "Temporal cut"
    STALL_TEMPORAL = "Temporal half-open"
    CUT_POSTGRES = "PostgreSQL cut"
    STALL_POSTGRES = "PostgreSQL half-open"
    DELAY_POSTGRES = "PostgreSQL slow"
    FILL_DISK = "disk full"
    FAIL_S3 = "S3 answers 503"
    REFUSE_S3 = "S3 refuses the keys"
    CUT_S3 = "S3 cut"
    STALL_S3 = "S3 half-open"
    DELAY_S3 = "S3 slow"


# What can be done to objects depends on where they are stored.
OF_DISK = frozenset({Kind.FILL_DISK})
OF_S3 = frozenset({Kind.FAIL_S3, Kind.REFUSE_S3, Kind.CUT_S3, Kind.STALL_S3, Kind.DELAY_S3})

# How often each comes, and for how many seconds it lasts (0: an instant).
_MIX: dict[Kind, tuple[int, tuple[float, float]]] = {
    Kind.KILL_WORKER: (8, (0, 0)),
    Kind.KILL_ALL_WORKERS: (3, (0, 0)),
    Kind.KILL_INGESTING: (3, (0, 0)),
    Kind.KILL_RUNNING: (3, (0, 0)),
    Kind.KILL_FINALIZING: (3, (0, 0)),
    Kind.KILL_CANCELLING: (3, (0, 0)),
    Kind.TERM_WORKER: (4, (0, 0)),
    Kind.TERM_ALL_WORKERS: (2, (0, 0)),
    Kind.FREEZE_WORKER: (3, (12, 18)),
    Kind.KILL_API: (3, (0, 0)),
    Kind.KILL_TEMPORAL: (3, (0, 0)),
    Kind.KILL_POSTGRES: (3, (0, 0)),
    Kind.KILL_POSTGRES_TWICE: (2, (0, 0.3)),
    Kind.FREEZE_API: (2, (3, 12)),
    Kind.FREEZE_TEMPORAL: (3, (5, 20)),
    Kind.FREEZE_POSTGRES: (2, (2, 12)),
    Kind.KILL_EVERYTHING: (1, (0, 0)),
    Kind.OUTAGE: (3, (3, 15)),
    Kind.HANG: (2, (2, 5)),
    Kind.LIMIT: (2, (2, 8)),
    Kind.SLOW: (2, (3, 8)),
    Kind.CUT_BACKEND: (3, (0, 0)),
    Kind.REFUSE_BACKEND: (2, (1, 6)),
    Kind.LOSE_BACKEND: (1, (60, 120)),
    Kind.STALL_BACKEND: (2, (1, 5)),
    Kind.CUT_TEMPORAL: (3, (1, 4)),
    Kind.STALL_TEMPORAL: (2, (5, 15)),
    Kind.CUT_POSTGRES: (3, (1, 4)),
    Kind.STALL_POSTGRES: (2, (5, 12)),
    Kind.DELAY_POSTGRES: (2, (3, 6)),
    Kind.FILL_DISK: (5, (3, 15)),
    Kind.FAIL_S3: (3, (3, 15)),
    Kind.REFUSE_S3: (2, (3, 15)),
    Kind.CUT_S3: (2, (1, 6)),
    Kind.STALL_S3: (2, (3, 10)),
    Kind.DELAY_S3: (2, (3, 10)),
}
_PAUSE_SECONDS = (1.0, 5.0)
# In a burst, pauses and durations are shorter by a factor from this range, except those of frozen workers.
_HASTE = (0.2, 1.0)

# Kills of every part. The workers come first, because their slices take longest to continue.
KILLS = (
    Kind.KILL_RUNNING,
    Kind.KILL_CANCELLING,
    Kind.KILL_TEMPORAL,
    Kind.KILL_POSTGRES,
    Kind.KILL_API,
)


class Disturbance(NamedTuple):
    """A disturbance of the stack.

    Attributes:
        pause: seconds before it begins.
        seconds: duration; 0 if it happens at an instant.
        choice: number from 0 to 1 that selects one of several workers or models by its position in their
            list.
    """

    pause: float
    kind: Kind
    seconds: float
    choice: float

    def __str__(self) -> str:
        return f"{self.kind.value}{f', {self.seconds:.0f} s' if self.seconds else ''}"


def disturbances(seed: int, but: Set[Kind] = frozenset()) -> Iterator[Disturbance]:
    """Yield random disturbances of all kinds except `but`, without end."""
    rng = random.Random(seed)
    kinds = [kind for kind in _MIX if kind not in but]
    weights = [_MIX[kind][0] for kind in kinds]
    while True:
        (kind,) = rng.choices(kinds, weights)
        shortest, longest = _MIX[kind][1]
        yield Disturbance(rng.uniform(*_PAUSE_SECONDS), kind, rng.uniform(shortest, longest), rng.random())


def bursts(seed: int, most: int, but: Set[Kind] = frozenset()) -> Iterator[Sequence[Disturbance]]:
    """Yield bursts of disturbances without end. A burst has up to `most` disturbances that overlap.

    All disturbances of a burst have different kinds. Outages of a backend for a minute or two are left out,
    because nothing else could be disturbed meanwhile.

    Args:
        but: other kinds that are left out.
    """
    rng = random.Random(f"{seed} in bursts")
    single = disturbances(seed, but | {Kind.LOSE_BACKEND})
    while True:
        haste = rng.uniform(*_HASTE)
        burst: dict[Kind, Disturbance] = {}
        for what in islice(single, rng.randint(1, most)):
            seconds = what.seconds * (1 if what.kind is Kind.FREEZE_WORKER else haste)
            burst[what.kind] = what._replace(pause=what.pause * haste, seconds=seconds)
        yield tuple(burst.values())


def one_by_one(planned: Iterable[Disturbance]) -> Iterator[Sequence[Disturbance]]:
    """Yield bursts of one disturbance each."""
    for what in planned:
        yield (what,)


def once_each(seed: int, kinds: Iterable[Kind]) -> list[Sequence[Disturbance]]:
    """Return one burst for each kind, in this order. The pauses are short, and all disturbances have no
    duration.
    """
    rng = random.Random(seed)
    return [(Disturbance(rng.random(), kind, 0.0, rng.random()),) for kind in kinds]
