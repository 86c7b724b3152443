"""Counts every request to a backend as it ends: for /metrics, and for what the worker tells of itself.

It is in the way of every request: numbers are noted, and added to their series together (`show`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
CHAT, GROUPED_CHAT = "concurrent", "sync_microbatch"  # how a chat is sent: alone, or maybe with others

# Requests that end alike: model, backend, status, how they are sent where they are chats, whether answered.
_Kind = tuple[str, str, int, str, bool]


@dataclass
class _Sums:
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0


class TrafficMeter:
    """One a process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lanes: dict[tuple[str, str], _Sums] = {}
        self._gone: dict[tuple[str, str], _Sums] = {}
        self._ended: dict[_Kind, list[float]] = {}  # not shown yet: how long they took
        self._has_news = False

    def ended(
        self, model: str, backend: str, *, status: int, category: Category, seconds: float, chat: str = ""
    ) -> None:
        """A request, answered or not (`status` 0); of a chat, how it was sent."""
        is_answer = category is Category.NONE
        kind = model, backend, status, chat, is_answer
        took = self._ended.get(kind)
        if took is None:
            took = self._ended[kind] = []
        took.append(seconds)
        self._has_news = True
        if not is_answer:
            self._metrics.errors.labels(_ERRORS.get(category, "backend_error"), model).inc()

    def used(self, model: str, backend: str, usages: Sequence[Counted]) -> None:
        """The tokens of answers, where the backend told any."""
        prompts = [usage.input_tokens for usage in usages if usage.input_tokens]
        completions = [usage.output_tokens for usage in usages if usage.output_tokens]
        for kind, tokens in (("prompt", prompts), ("completion", completions)):
            if tokens:
                self._metrics.backend_request_tokens.labels(model, backend, kind).observe_all(tokens)

    def show(self) -> None:
        """In /metrics, what was noted since the last time."""
        if not self._has_news:
            return
        self._has_news = False
        for kind, took in self._ended.items():
            if took:
                self._show(kind, took)
                took.clear()

    def _show(self, kind: _Kind, took: Sequence[float]) -> None:
        metrics, (model, backend, status, chat, is_answer) = self._metrics, kind
        lane = self._lanes.get((model, backend))
        if lane is None:
            lane = self._lanes[model, backend] = _Sums()
        lane.requests += len(took)
        lane.errors += 0 if is_answer else len(took)
        lane.seconds += sum(took)
        metrics.requests.labels(model, backend, _text(status)).inc(len(took))
        metrics.backend_request_seconds.labels(model, backend).observe_all(took)
        if chat:
            labels = chat, "success" if is_answer else "error"
            metrics.chat_items.labels(*labels).inc(len(took))
            metrics.chat_seconds.labels(*labels).observe_all(took)

    def put_off(self, model: str, reason: str) -> None:
        """A slice that found nobody to ask."""
        if kind := _PUT_OFF.get(reason):
            self._metrics.errors.labels(kind, model).inc()

    def keep(self, models: Collection[str], backends: Collection[str]) -> None:
        """Of all others only sums are kept: of what a model had elsewhere, and of all that is gone."""
        self.show()
        self._ended.clear()
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
        self.show()
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
