"""What workers have sent since they started, told by each and added up (S2-42 to S2-45)."""

from collections.abc import Iterable
from dataclasses import dataclass
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
    by_backend = {name: _Sum() for name in sorted({*backends})}
    by_model = {name: _Sum() for name in sorted({*models})}
    whole, gone, errors = _Sum(), _Sum(), 0
    for (model, backend), lane in _by_lane(told).items():
        errors += lane.errors
        for total in (whole, by_backend.get(backend, gone), by_model.get(model, gone)):
            total.requests += lane.requests
            total.seconds += lane.seconds
            total.pending += lane.pending
    shares = [_share(name, total) for name, total in by_model.items()]
    return Traffic(
        requests=whole.requests,
        errors=errors,
        backends=[_share(name, total) for name, total in by_backend.items()],
        models=sorted(shares, key=lambda share: -share.requests),
    )


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    pending: int = 0


def _by_lane(told: Iterable[LaneTraffic]) -> dict[tuple[str, str], _Sum]:
    """Many workers tell of the same few."""
    found: dict[tuple[str, str], _Sum] = {}
    for lane in told:
        key = (lane.model, lane.backend)
        total = found.get(key)
        if total is None:
            total = found[key] = _Sum()
        total.requests += lane.requests
        total.errors += lane.errors
        total.seconds += lane.seconds
        total.pending += lane.pending
    return found


def _share(name: str, total: _Sum) -> Share:
    average = 1000 * total.seconds / total.requests if total.requests else 0.0
    return Share(name, total.requests, average, total.pending)
