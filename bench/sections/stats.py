"""Section of the benchmark: CPU time to record a request in all metrics, and to show the metrics."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange, ServedModel
from batchwright.contracts.terms import Usage
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.rules.dispatch.retry_policy import Category
from batchwright.rules.worker_stats import UpstreamTraffic, sum_traffic
from batchwright.settings import load
from batchwright.telemetry.backend_traffic import CHAT, BackendTraffic
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.backend_metrics import register_backend_metrics, update_backend_gauges
from bench.results import Figure, Target, percentile
from bench.section import Section, SectionOptions

_SECONDS = 2.5
_MODELS = [f"model-{number}" for number in range(10)]
_BACKENDS = [f"http://backend-{number}:8000" for number in range(10)]
_USAGE = Usage(input_tokens=100, output_tokens=50)
_SHOWN = 50  # scrapes


class _Changes:
    """A substitute for the database table with the models that are registered at run time.

    Each model has all backends.
    """

    def __init__(self, models: Sequence[str], backends: Sequence[str]) -> None:
        config = ModelConfig(backends=[BackendConfig(url=url) for url in backends])
        self._rows = [
            ModelChange(model=model, config=config, changed_at=datetime.now(UTC)) for model in models
        ]

    async def all(self) -> Sequence[ModelChange]:
        return self._rows


class _Lists:
    async def replace_models(self, backend_url: str, names: list[str], at: object) -> None:
        pass

    async def served(self, backend_urls: list[str]) -> Sequence[ServedModel]:
        return ()


class _Worker:
    """A substitute for a worker, which only has the metrics of requests to `models` at `backends`."""

    def __init__(self, models: Sequence[str], backends: Sequence[str]) -> None:
        self.models, self.backends = models, backends
        self.metrics = Metrics()
        self.meter = BackendTraffic(self.metrics)
        settings = load(backends=[])
        tables = (_Lists(), _Changes(models, backends))
        self.registry = BackendRegistry(settings, *tables, ClientPool(settings), unavailable=OSError)
        asyncio.run(self.registry.refresh_changes())
        register_backend_metrics(self.registry, self.metrics)

    def count(self, requests: int) -> float:
        """Record responses in all metrics, as a worker does. Return the CPU time in seconds.

        Each pair of a model and a backend gets the same number of responses. Of these, 10 % (rounded down)
        are failures.

        Args:
            requests: number of responses to record.
        """
        lanes = [(model, backend) for backend in self.backends for model in self.models]
        started = time.process_time()
        for number in range(requests):
            self._count(lanes[number % len(lanes)][0])
        each = requests // len(lanes)
        failed, succeeded = [0.5] * (each // 10), [0.5] * (each - each // 10)
        for model, backend in lanes:
            self.meter.record(model, backend, succeeded, status=200, category=Category.NONE, chat=CHAT)
            self.meter.record(model, backend, failed, status=500, category=Category.UPSTREAM_5XX, chat=CHAT)
            self.meter.record_usage(model, backend, [_USAGE] * each)
        for model in self.models:
            self.metrics.request_seconds.labels(model).observe_all([0.5] * (requests // len(self.models)))
        return time.process_time() - started

    def _count(self, model: str) -> None:
        metrics = self.metrics
        metrics.results.labels(model, "success").inc()
        metrics.tenant_results.labels(metrics.tenants("acme"), "success").inc()
        metrics.prompt_tokens.labels(model).inc(100)
        metrics.generation_tokens.labels(model).inc(50)


def measure(options: SectionOptions) -> list[Figure]:
    requests = options.size(10_000, 2_000)
    found: list[tuple[float, ...]] = []
    for number in options.turns(_SECONDS):
        few, many = _Worker(_MODELS[:2], _BACKENDS[:2]), _Worker(_MODELS, _BACKENDS)
        few.count(requests)
        counted = 1000 * many.count(requests) / requests
        shown = [_cpu_p95_ms(one.metrics.render, lambda one=one: one.count(200)) for one in (few, many)]
        gauges = _cpu_p95_ms(lambda many=many: update_backend_gauges(many.registry, many.metrics))
        rows = [lane.model_dump() for lane in many.meter.snapshot({})]
        found.append((counted, *shown, gauges, _cpu_p95_ms(lambda rows=rows: _sums(rows))))
        options.report(f"round {number}: {1000 * counted:.1f} us a request, {shown[1]:.2f} ms a scrape")
    counted, few_ms, many_ms, gauges_ms, stats_ms = ([*column] for column in zip(*found, strict=True))
    return [
        Figure("stats.request_ms", "counting one request in every family", counted, "ms", Target(0.1)),
        Figure("stats.few_ms", "/metrics of 2 models at 2 backends, p95", few_ms, "ms", Target(1.0)),
        Figure("stats.metrics_ms", "/metrics of 10 models at each of 10, p95", many_ms, "ms", Target(1.0)),
        Figure("stats.gauges_ms", "its gauges of backends, p95", gauges_ms, "ms", Target(0.5)),
        Figure("stats.sum_ms", "/v1/stats of 10 models at 10 backends, p95", stats_ms, "ms", Target(2.0)),
    ]


def _sums(rows: Sequence[dict[str, object]]) -> object:
    """Return the sums of the workers' statistics (`rows`), as the API computes them for /v1/stats."""
    return sum_traffic(map(UpstreamTraffic.model_validate, rows), _BACKENDS, _MODELS)


def _cpu_p95_ms(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Call `work` many times. Return the 95th percentile of the CPU time of a call in milliseconds.

    `before` is called before each call. Its time is not measured.
    """
    taken: list[float] = []
    for _ in range(_SHOWN):
        before()
        started = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - started))
    return percentile(taken, 0.95)


SECTION = Section(
    "stats",
    "What counting costs",
    "10,000 requests of 10 models at 10 backends, one in ten of them failed, counted as a slice does. Then "
    "the exposition, each time after 200 more requests, two of every model at every backend, and what the "
    "API makes of the sums for /v1/stats. CPU of one process, without the SDK's own metrics and without "
    "HTTP: with both, it is in the section `serving`.",
    0.05,
    measure,
)
