"""Who polls which queue and runs whose slices, as workers say with their beats: Temporal forgets late."""

from collections.abc import Iterable, Mapping

BEAT_SECONDS = 2.5
# Three beats, so that one that is late counts as no death.
FRESH_SECONDS = 3 * BEAT_SECONDS
_PREFIX, _RUNS = "polls ", "runs "
_NOBODY = "no worker polls its queue"


def polls(queues: Iterable[str]) -> dict[str, float]:
    """As a worker tells it among its numbers."""
    return {f"{_PREFIX}{queue}": 1.0 for queue in queues}


def runs(slices: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """How many slices of a batch and model a worker runs, by their ids and names, as it tells it there."""
    return {f"{_RUNS}{batch_id} {model}": float(count) for (batch_id, model), count in slices.items()}


def is_number(name: str) -> bool:
    """Whether it is one of a worker's own numbers, and none of these two."""
    return not name.startswith((_PREFIX, _RUNS))


def polled(told: Iterable[Mapping[str, float]]) -> frozenset[str]:
    """The queues that one of these workers polls."""
    return _named(_PREFIX, told)


def running(told: Iterable[Mapping[str, float]]) -> frozenset[tuple[str, str]]:
    """Batches and models of which one of these workers runs a slice."""
    parted = (name.partition(" ") for name in _named(_RUNS, told))
    return frozenset((batch_id, model) for batch_id, _, model in parted)


def _named(prefix: str, told: Iterable[Mapping[str, float]]) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix) for stats in told for name in stats if name.startswith(prefix))


def nobody_polls(queue: str) -> str:
    """Stands beside the name of the model, if the queue is one's."""
    return f"{_NOBODY} {queue}: start `batchwright worker`"


def is_unpolled(reason: str) -> bool:
    """Whether it is what `nobody_polls` says, of whichever queue."""
    return reason.startswith(_NOBODY)
