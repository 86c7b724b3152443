"""Counts every request to a backend, for /metrics and for the statistics that a worker publishes."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from batchwright.rules.dispatch.retry_policy import Category
from batchwright.rules.results.token_usage import TokenUsage
from batchwright.rules.worker_stats import UpstreamTraffic
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

_ERRORS = {
    Category.TIMEOUT: "timeout",
    Category.NO_HEALTHY_DEPLOYMENTS: "no_healthy_backend",
    Category.RESPONSE_SHAPE: "parse_error",
    Category.INVALID_REQUEST: "other",  # caused by the line
    Category.POLICY: "other",
    Category.UNKNOWN: "other",
}
_DEFERRAL_ERRORS = {
    "no_backend": "no_backend",
    "capacity": "no_healthy_backend",
    "authentication": "no_healthy_backend",
    "permission": "no_healthy_backend",
}
_RATE_SECONDS = 60.0  # tokens so long ago count about a third as much as new ones
CHAT, GROUPED_CHAT = "concurrent", "sync_microbatch"  # chats are sent alone, or may share requests


@dataclass
class _TrafficTotals:
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    squared_seconds: float = 0.0
    tokens: int = 0  # since the previous snapshot
    tokens_per_second: float = 0.0  # as of the previous snapshot


class BackendTraffic:
    """Counters for the requests of this process, by model and backend."""

    def __init__(self, metrics: Metrics, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._monotonic = metrics, monotonic
        self._snapshot_at = monotonic()
        self._totals: dict[tuple[str, str], _TrafficTotals] = {}  # by model and backend
        self._removed: dict[tuple[str, str], _TrafficTotals] = {}  # backends and models no longer registered

    def record(
        self,
        model: str,
        backend: str,
        durations: Sequence[float],
        *,
        status: int,
        category: Category,
        chat: str = "",
    ) -> None:
        """Add completed requests to the metrics and the totals of one model at one backend.

        All the requests must have ended with the same status and category.

        Args:
            model: name of the model.
            backend: URL of the backend.
            durations: duration of each request, in seconds. A request that several lines share has one entry
                for each of these lines.
            status: HTTP status of the requests; 0 if there was no usable response.
            category: kind of failure of the requests; NONE if they succeeded.
            chat: CHAT if each request has one chat; GROUPED_CHAT if a request can have several chats; "" if
                the requests are not chats.
        """
        metrics, is_answered = self._metrics, category is Category.NONE
        totals = self._totals.get((model, backend))
        if totals is None:
            totals = self._totals[model, backend] = _TrafficTotals()
        totals.requests += len(durations)
        totals.seconds += sum(durations)
        totals.squared_seconds += sum(seconds * seconds for seconds in durations)
        metrics.requests.labels(model, backend, _status_label(status)).inc(len(durations))
        metrics.backend_request_seconds.labels(model, backend).observe_all(durations)
        if not is_answered:
            totals.errors += len(durations)
            metrics.errors.labels(_ERRORS.get(category, "backend_error"), model).inc(len(durations))
        if chat:
            labels = chat, "success" if is_answered else "error"
            metrics.chat_items.labels(*labels).inc(len(durations))
            metrics.chat_seconds.labels(*labels).observe_all(durations)

    def record_usage(self, model: str, backend: str, usages: Sequence[TokenUsage]) -> None:
        """Add the tokens that a backend reported to the metrics and the totals.

        `usages` has one item per response.
        """
        prompts = [usage.input_tokens for usage in usages if usage.input_tokens]
        completions = [usage.output_tokens for usage in usages if usage.output_tokens]
        if totals := self._totals.get((model, backend)):
            totals.tokens += sum(prompts) + sum(completions)
        for kind, tokens in (("prompt", prompts), ("completion", completions)):
            if tokens:
                self._metrics.backend_request_tokens.labels(model, backend, kind).observe_all(tokens)

    def record_deferral(self, model: str, reason: str) -> None:
        """Count an error of the model if `reason` means that no backend can accept the model's lines.

        Args:
            reason: why the lines must wait, as `deferral_cause` returns it. For `retry`, nothing is counted.
        """
        if error_type := _DEFERRAL_ERRORS.get(reason):
            self._metrics.errors.labels(error_type, model).inc()

    def retain(self, models: Collection[str], backends: Collection[str]) -> None:
        """Keep separate totals only for these models and backends, to limit the number of totals.

        A total counts the requests of one model at one backend. The other totals are removed:

        - If the model is in `models`, the total is added to the model's total for the backend `other`.
        - If the model is not in `models`, the total is added to the total of the model `other` at the backend
          `other`.
        """
        for key in [key for key in self._totals if key[0] not in models or key[1] not in backends]:
            self._fold(self._totals.pop(key), key[0] if key[0] in models else OTHER)
        for model, backend in [key for key in self._removed if key[0] not in {*models, OTHER}]:
            self._fold(self._removed.pop((model, backend)), OTHER)

    def snapshot(
        self, pending: Mapping[tuple[str, str], int], open_circuits: Collection[tuple[str, str]] = ()
    ) -> list[UpstreamTraffic]:
        """Return the counts of requests since the process started, for every model and backend with requests.

        Args:
            pending: number of requests in flight by (model, backend).
            open_circuits: each (model, backend) whose circuit breaker is open.
        """
        now = self._monotonic()
        passed, self._snapshot_at = now - self._snapshot_at, now
        if passed > 0:
            for totals in self._totals.values():
                rate, totals.tokens = totals.tokens / passed, 0
                kept = math.exp(-passed / _RATE_SECONDS)
                totals.tokens_per_second = kept * totals.tokens_per_second + (1 - kept) * rate
        used = {*open_circuits, *(key for key, count in pending.items() if count)}
        return [
            self._upstream_traffic(*key).model_copy(
                update={"pending": pending.get(key, 0), "open_circuits": int(key in open_circuits)}
            )
            for key in sorted({*self._totals, *self._removed, *used})
        ]

    def _fold(self, removed: _TrafficTotals, model: str) -> None:
        total = self._removed.setdefault((model, OTHER), _TrafficTotals())
        total.requests += removed.requests
        total.errors += removed.errors
        total.seconds += removed.seconds
        total.squared_seconds += removed.squared_seconds

    def _upstream_traffic(self, model: str, backend: str) -> UpstreamTraffic:
        totals = self._totals.get((model, backend)) or self._removed.get((model, backend)) or _TrafficTotals()
        return UpstreamTraffic(
            model=model,
            backend=backend,
            requests=totals.requests,
            errors=totals.errors,
            seconds=round(totals.seconds, 3),
            squared_seconds=round(totals.squared_seconds, 3),
            tokens_per_second=round(totals.tokens_per_second, 1),
        )


def _status_label(status: int) -> str:
    """Return the metric label for an HTTP status: the status itself, `none` for 0, or `other` if it is
    invalid.
    """
    if not status:
        return "none"
    return str(status) if 100 <= status <= 599 else OTHER
