"""What workers have sent since they started, told by each and added up (S2-42 to S2-45)."""

from collections.abc import Iterable
from typing import NamedTuple

from batchwright.contracts.message import Message


class LaneTraffic(Message):
    """Of a model at one of its backends: requests that had an end, and how long these took together.

    `pending` are those under way. Lines that share a request count one each.
    """

    model: str
    backend: str
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    pending: int = 0


class Share(NamedTuple):
    """Of a backend or a model; the average is 0 before the first request."""

    name: str
    requests: int
    average_ms: float
    pending: int


class Traffic(NamedTuple):
    requests: int
    errors: int
    backends: list[Share]  # by name
    models: list[Share]  # the busiest first


def added_up(told: Iterable[LaneTraffic], backends: Iterable[str], models: Iterable[str]) -> Traffic:
    """Over all workers. `backends` and `models` are those there are, also without a request.

    What was sent to one that is gone counts in the sums of all.
    """
    lanes = list(told)
    by_backend = [
        _share(name, [lane for lane in lanes if lane.backend == name]) for name in sorted({*backends})
    ]
    by_model = [_share(name, [lane for lane in lanes if lane.model == name]) for name in sorted({*models})]
    return Traffic(
        requests=sum(lane.requests for lane in lanes),
        errors=sum(lane.errors for lane in lanes),
        backends=by_backend,
        models=sorted(by_model, key=lambda share: -share.requests),
    )


def _share(name: str, lanes: list[LaneTraffic]) -> Share:
    requests = sum(lane.requests for lane in lanes)
    seconds = sum(lane.seconds for lane in lanes)
    average = 1000 * seconds / requests if requests else 0.0
    return Share(name, requests, average, sum(lane.pending for lane in lanes))
