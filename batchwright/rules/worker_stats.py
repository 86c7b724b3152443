"""Make and read the statistics that workers send as heartbeats: polled queues, running slices, sent requests.

The statistics are numbers with names. A polled task queue has the name `polls QUEUE`. A running slice, which
is a part of a batch, has the name `runs BATCH_ID MODEL`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from batchwright.contracts.message import Message

HEARTBEAT_SECONDS = 2.5
# Three heartbeats, so that a worker with a late heartbeat does not count as dead.
FRESH_SECONDS = 3 * HEARTBEAT_SECONDS
FRESH_AGE = timedelta(seconds=FRESH_SECONDS)
INTERACTIVE_AGE = timedelta(
    seconds=5
)  # maximum age of a report about interactive calls; one is sent each second
_POLLS, _RUNS = "polls ", "runs "
ANY_MODEL_QUEUE = "inference.*"  # stands for the queue of any model that a batch waits for
_UNPOLLED = "no worker polls its queue"


def polled_queue_stats(queues: Iterable[str]) -> dict[str, float]:
    """Return the heartbeat statistics of a worker about the task queues of Temporal that it polls."""
    return {f"{_POLLS}{queue}": 1.0 for queue in queues}


def running_slice_stats(slices: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Return the heartbeat statistics of a worker about its running slices.

    Args:
        slices: number of running slices by (batch id, model).
    """
    return {f"{_RUNS}{batch_id} {model}": float(count) for (batch_id, model), count in slices.items()}


def is_worker_number(name: str) -> bool:
    """Return True if a heartbeat statistic is about the whole worker.

    Return False if it is about one task queue or one batch. `name` is the name of the statistic.
    """
    return not name.startswith((_POLLS, _RUNS))


def polled_queues(reports: Iterable[Mapping[str, float]]) -> frozenset[str]:
    """Return the task queues of Temporal that at least one worker polls.

    Args:
        reports: the heartbeat statistics of each worker.
    """
    return frozenset(
        name.removeprefix(_POLLS) for stats in reports for name in stats if name.startswith(_POLLS)
    )


def is_polled(queue: str, served: Collection[str]) -> bool:
    """Return True if a worker polls the task queue, or will poll the queue when a batch needs it.

    Args:
        queue: name of a task queue of Temporal.
        served: task queues that workers report. `ANY_MODEL_QUEUE` stands for the queue of any model that a
            batch needs.
    """
    return queue in served or (
        ANY_MODEL_QUEUE in served and queue.startswith(ANY_MODEL_QUEUE.removesuffix("*"))
    )


def running_models(reports: Iterable[Mapping[str, float]]) -> frozenset[tuple[str, str]]:
    """Return the pairs (batch id, model) for which at least one worker runs a slice (part of a batch).

    Args:
        reports: the heartbeat statistics of each worker.
    """
    return frozenset(key for stats in reports for key in running_slices(stats))


def running_slices(stats: Mapping[str, float]) -> dict[tuple[str, str], int]:
    """Return how many slices a worker runs, by (batch id, model). `stats` is from its heartbeat."""
    found: dict[tuple[str, str], int] = {}
    for name, count in stats.items():
        if name.startswith(_RUNS):
            batch_id, _, model = name.removeprefix(_RUNS).partition(" ")
            found[batch_id, model] = int(count)
    return found


def unpolled_reason(queue: str) -> str:
    """Return the text that says why work in a task queue waits: no worker polls this queue."""
    return f"{_UNPOLLED} {queue}: start `batchwright worker`"


def is_unpolled_reason(reason: str) -> bool:
    """Return True if the text `reason` came from `unpolled_reason`, for any queue."""
    return reason.startswith(_UNPOLLED)


class UpstreamTraffic(Message):
    """The totals of one worker's requests for one model to one backend, since the worker started.

    Attributes:
        requests: number of requests that have ended. A request that several lines share counts once for each
            of these lines.
        errors: number of requests that failed.
        seconds: sum of the durations of the ended requests, in seconds.
        squared_seconds: sum of the squared durations.
        pending: number of requests in flight.
        tokens_per_second: average rate of tokens in requests and responses, over about the last minute.
        open_circuits: 1 if the worker's circuit breaker for the model at this backend is open. After many
            failures, an open circuit breaker lets only single test requests pass. In a sum over workers:
            the number of workers whose circuit breaker is open.
    """

    model: str
    backend: str
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    squared_seconds: float = 0.0
    pending: int = 0
    tokens_per_second: float = 0.0
    open_circuits: int = 0


class TrafficShare(NamedTuple):
    """The number of ended requests and their average duration, for one backend or one model.

    Attributes:
        name: name of the backend or model.
        requests: number of requests that have ended.
        average_ms: average duration of these requests, in milliseconds.
        pending: number of requests in flight.
        tokens_per_second: tokens in requests and responses per second, over about the last minute.
    """

    name: str
    requests: int
    average_ms: float
    pending: int
    tokens_per_second: float = 0.0


class OpenCircuit(NamedTuple):
    """An open circuit breaker for a model at a backend.

    After many failures, an open circuit breaker lets only single test requests pass. Each worker has its own
    circuit breaker. `workers` is the number of workers whose circuit breaker is open.
    """

    model: str
    backend: str
    workers: int


class FleetTraffic(NamedTuple):
    """The numbers of requests of all workers: in total, by backend and by model."""

    requests: int
    errors: int
    backends: list[TrafficShare]  # by name
    models: list[TrafficShare]  # sorted by number of requests, the busiest first
    open_circuits: list[OpenCircuit]  # by model and backend


def sum_traffic(
    reports: Iterable[UpstreamTraffic], backends: Iterable[str], models: Iterable[str]
) -> FleetTraffic:
    """Add up the requests of all workers: in total, by backend and by model.

    The result contains each of the registered `backends` and `models`, even without requests. The totals also
    include requests to backends and models that are no longer registered.
    """
    by_backend = {name: _TrafficSum() for name in sorted({*backends})}
    by_model = {name: _TrafficSum() for name in sorted({*models})}
    total_of_all, removed = _TrafficSum(), _TrafficSum()
    upstreams = _by_upstream(reports)
    for (model, backend), traffic in upstreams.items():
        for total in (total_of_all, by_backend.get(backend, removed), by_model.get(model, removed)):
            total.add(traffic)
    shares = [_share(name, total) for name, total in by_model.items()]
    return FleetTraffic(
        requests=total_of_all.requests,
        errors=total_of_all.errors,
        backends=[_share(name, total) for name, total in by_backend.items()],
        models=sorted(shares, key=lambda share: -share.requests),
        open_circuits=[
            OpenCircuit(model, backend, traffic.open_circuits)
            for (model, backend), traffic in sorted(upstreams.items(), key=lambda item: item[0])
            if traffic.open_circuits and model in by_model and backend in by_backend
        ],
    )


@dataclass(slots=True)
class _TrafficSum:
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    pending: int = 0
    tokens_per_second: float = 0.0
    open_circuits: int = 0

    def add(self, other: "UpstreamTraffic | _TrafficSum") -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.seconds += other.seconds
        self.pending += other.pending
        self.tokens_per_second += other.tokens_per_second
        self.open_circuits += other.open_circuits


def _by_upstream(reports: Iterable[UpstreamTraffic]) -> dict[tuple[str, str], _TrafficSum]:
    """Return the reports of all workers, added up for each (model, backend)."""
    found: defaultdict[tuple[str, str], _TrafficSum] = defaultdict(_TrafficSum)
    for traffic in reports:
        found[traffic.model, traffic.backend].add(traffic)
    return found


def _share(name: str, total: _TrafficSum) -> TrafficShare:
    average = 1000 * total.seconds / total.requests if total.requests else 0.0
    return TrafficShare(name, total.requests, average, total.pending, total.tokens_per_second)
