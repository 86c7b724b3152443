"""Counts every request to a backend as it ends: for /metrics, and for what the worker tells of itself.

It is in the way of every request: series are looked up once, then kept.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from batchwright.contracts.openai import Endpoint, Usage
from batchwright.rules.retries import Category
from batchwright.rules.traffic import LaneTraffic
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.series import CounterSeries, HistogramSeries

_ERRORS = {
    Category.TIMEOUT: "timeout",
    Category.NO_HEALTHY_DEPLOYMENTS: "no_healthy_backend",
    Category.RESPONSE_SHAPE: "parse_error",
    Category.INVALID_REQUEST: "other",  # the line's own fault
    Category.POLICY: "other",
    Category.UNKNOWN: "other",
}
_PUT_OFF = {
    "no_backend": "no_backend",
    "capacity": "no_healthy_backend",
    "authentication": "no_healthy_backend",
    "permission": "no_healthy_backend",
}


@dataclass
class _Sums:
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class _Lane(_Sums):
    seconds_seen: HistogramSeries
    statuses: dict[int, CounterSeries] = field(default_factory=dict[int, CounterSeries])
    tokens: dict[str, HistogramSeries] = field(default_factory=dict[str, HistogramSeries])  # by kind


class TrafficMeter:
    """One a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._gone: dict[tuple[str, str], _Sums] = {}
        self._chats: dict[tuple[bool, bool], tuple[CounterSeries, HistogramSeries]] = {}

    def ended(self, model: str, backend: str, *, status: int, category: Category, seconds: float) -> None:
        """A request, answered or not (`status` 0)."""
        lane = self._lanes.get((model, backend)) or self._made(model, backend)
        counter = lane.statuses.get(status)
        if counter is None:
            counter = lane.statuses[status] = self._metrics.requests.labels(model, backend, _text(status))
        counter.inc()
        lane.seconds_seen.observe(seconds)
        lane.requests += 1
        lane.seconds += seconds
        if category is not Category.NONE:
            lane.errors += 1
            self._metrics.errors.labels(_ERRORS.get(category, "backend_error"), model).inc()

    def chatted(self, endpoint: Endpoint, *, grouped: bool, is_answer: bool, seconds: float) -> None:
        """The same, where it was a chat: `grouped` lines may share requests."""
        if endpoint is not Endpoint.CHAT_COMPLETIONS:
            return
        found = self._chats.get((grouped, is_answer))
        if found is None:
            labels = "sync_microbatch" if grouped else "concurrent", "success" if is_answer else "error"
            found = self._metrics.chat_items.labels(*labels), self._metrics.chat_seconds.labels(*labels)
            self._chats[grouped, is_answer] = found
        counter, histogram = found
        counter.inc()
        histogram.observe(seconds)

    def used(self, model: str, backend: str, usage: Usage) -> None:
        """The tokens of an answer, where the backend told any."""
        lane = self._lanes.get((model, backend)) or self._made(model, backend)
        for kind, count in (("prompt", usage.input_tokens), ("completion", usage.output_tokens)):
            if count:
                histogram = lane.tokens.get(kind)
                if histogram is None:
                    family = self._metrics.backend_request_tokens
                    histogram = lane.tokens[kind] = family.labels(model, backend, kind)
                histogram.observe(count)

    def _made(self, model: str, backend: str) -> _Lane:
        histogram = self._metrics.backend_request_seconds.labels(model, backend)
        lane = self._lanes[model, backend] = _Lane(seconds_seen=histogram)
        return lane

    def put_off(self, model: str, reason: str) -> None:
        """A slice that found nobody to ask."""
        if kind := _PUT_OFF.get(reason):
            self._metrics.errors.labels(kind, model).inc()

    def keep(self, models: Collection[str], backends: Collection[str]) -> None:
        """Of all others only sums are kept: of what a model had elsewhere, and of all that is gone."""
        for key in [key for key in self._lanes if key[0] not in models or key[1] not in backends]:
            self._fold(self._lanes.pop(key), key[0] if key[0] in models else OTHER)
        for model, backend in [key for key in self._gone if key[0] not in {*models, OTHER}]:
            self._fold(self._gone.pop((model, backend)), OTHER)

    def _fold(self, gone: _Sums, model: str) -> None:
        total = self._gone.setdefault((model, OTHER), _Sums())
        total.requests += gone.requests
        total.errors += gone.errors
        total.seconds += gone.seconds

    def told(self, pending: dict[tuple[str, str], int]) -> list[LaneTraffic]:
        """Of every model and backend that had a request, or has one under way."""
        keys = {*self._lanes, *self._gone, *(key for key, count in pending.items() if count)}
        return [self._told(*key, pending.get(key, 0)) for key in sorted(keys)]

    def _told(self, model: str, backend: str, pending: int) -> LaneTraffic:
        lane = self._lanes.get((model, backend)) or self._gone.get((model, backend))
        if lane is None:
            return LaneTraffic(model=model, backend=backend, pending=pending)
        return LaneTraffic(
            model=model,
            backend=backend,
            requests=lane.requests,
            errors=lane.errors,
            seconds=round(lane.seconds, 3),
            pending=pending,
        )


def _text(status: int) -> str:
    """Of a backend that makes up its own: `other`, so that they stay few (S2-16)."""
    if not status:
        return "none"
    return str(status) if 100 <= status <= 599 else OTHER
