"""Which task queues somebody polls, as workers say with their beats: Temporal forgets after minutes only."""

from collections.abc import Iterable, Mapping

BEAT_SECONDS = 2.5
# Three beats, so that one that is late counts as no death.
FRESH_SECONDS = 3 * BEAT_SECONDS
_PREFIX = "polls "
_NOBODY = "no worker polls its queue"


def polls(queues: Iterable[str]) -> dict[str, float]:
    """As a worker tells it among its numbers."""
    return {f"{_PREFIX}{queue}": 1.0 for queue in queues}


def is_poll(name: str) -> bool:
    return name.startswith(_PREFIX)


def polled(told: Iterable[Mapping[str, float]]) -> frozenset[str]:
    """The queues that one of these workers polls."""
    return frozenset(name.removeprefix(_PREFIX) for stats in told for name in stats if is_poll(name))


def nobody_polls(queue: str) -> str:
    """Stands beside the name of the model, if the queue is one's."""
    return f"{_NOBODY} {queue}: start `batchwright worker`"


def is_unpolled(reason: str) -> bool:
    """Whether it is what `nobody_polls` says, of whichever queue."""
    return reason.startswith(_NOBODY)
