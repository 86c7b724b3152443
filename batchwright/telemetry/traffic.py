"""Counts every request to a backend as it ends: for /metrics, and for what the worker tells of itself.

It is in the way of every request: numbers are noted, and added to their series together (`show`).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from batchwright.contracts.openai import Endpoint
from batchwright.rules.retries import Category
from batchwright.rules.traffic import LaneTraffic
from batchwright.rules.usage import Counted
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

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
    """Beside its sums, what is not shown yet."""

    took: list[float] = field(default_factory=list[float])
    statuses: Counter[int] = field(default_factory=Counter[int])
    prompts: list[int] = field(default_factory=list[int])
    completions: list[int] = field(default_factory=list[int])


class TrafficMeter:
    """One a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._gone: dict[tuple[str, str], _Sums] = {}
        self._chats: dict[tuple[bool, bool], list[float]] = {}  # not shown yet: how long they took
        self._has_news = False

    def ended(self, model: str, backend: str, *, status: int, category: Category, seconds: float) -> None:
        """A request, answered or not (`status` 0)."""
        lane = self._lanes.get((model, backend)) or self._made(model, backend)
        lane.statuses[status] += 1
        lane.took.append(seconds)
        self._has_news = True
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
            found = self._chats[grouped, is_answer] = []
        self._has_news = True
        found.append(seconds)

    def used(self, model: str, backend: str, usage: Counted) -> None:
        """The tokens of an answer, where the backend told any."""
        lane = self._lanes.get((model, backend)) or self._made(model, backend)
        self._has_news = True
        if usage.input_tokens:
            lane.prompts.append(usage.input_tokens)
        if usage.output_tokens:
            lane.completions.append(usage.output_tokens)

    def show(self) -> None:
        """In /metrics, what was noted since the last time."""
        if not self._has_news:
            return
        self._has_news = False
        for (model, backend), lane in self._lanes.items():
            if lane.took or lane.prompts or lane.completions:
                self._show(model, backend, lane)
        for (grouped, is_answer), took in self._chats.items():
            if took:
                labels = "sync_microbatch" if grouped else "concurrent", "success" if is_answer else "error"
                self._metrics.chat_items.labels(*labels).inc(len(took))
                self._metrics.chat_seconds.labels(*labels).observe_all(took)
                took.clear()

    def _show(self, model: str, backend: str, lane: _Lane) -> None:
        metrics = self._metrics
        for status, count in lane.statuses.items():
            metrics.requests.labels(model, backend, _text(status)).inc(count)
        metrics.backend_request_seconds.labels(model, backend).observe_all(lane.took)
        for kind, tokens in (("prompt", lane.prompts), ("completion", lane.completions)):
            if tokens:
                metrics.backend_request_tokens.labels(model, backend, kind).observe_all(tokens)
        for noted in (lane.took, lane.statuses, lane.prompts, lane.completions):
            noted.clear()

    def _made(self, model: str, backend: str) -> _Lane:
        lane = self._lanes[model, backend] = _Lane()
        return lane

    def put_off(self, model: str, reason: str) -> None:
        """A slice that found nobody to ask."""
        if kind := _PUT_OFF.get(reason):
            self._metrics.errors.labels(kind, model).inc()

    def keep(self, models: Collection[str], backends: Collection[str]) -> None:
        """Of all others only sums are kept: of what a model had elsewhere, and of all that is gone."""
        self.show()
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
