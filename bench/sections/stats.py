"""What it costs a request to be counted, and what it costs to show the counts."""

import time
from collections.abc import Callable

from batchwright.contracts.openai import Endpoint, Usage
from batchwright.rules.retries import Category
from batchwright.rules.traffic import added_up
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.traffic import TrafficMeter
from bench.options import Options
from bench.results import Figure, Target
from bench.section import Section
from bench.sections.serving import percentile

_SECONDS = 1.5
_MODELS = [f"model-{number}" for number in range(10)]
_BACKENDS = [f"http://backend-{number}:8000" for number in range(10)]
_USAGE = Usage(input_tokens=100, output_tokens=50)
_SHOWN = 50  # times; also the workers whose numbers are added up


def measure(options: Options) -> list[Figure]:
    requests = options.size(20_000, 2_000)
    counted: list[float] = []
    shown: list[float] = []
    summed: list[float] = []
    for number in options.turns(_SECONDS):
        metrics = Metrics()
        meter = TrafficMeter(metrics)
        counted.append(1000 * _count(metrics, meter, requests) / requests)
        shown.append(_p95_ms(metrics.shown))
        told = meter.told({}) * _SHOWN
        summed.append(_p95_ms(lambda told=told: added_up(told, _BACKENDS, _MODELS)))
        options.say(f"round {number}: {1000 * counted[-1]:.1f} us a request")
    return [
        Figure("stats.request_ms", "counting one request in every family", counted, "ms", Target(0.1)),
        Figure("stats.metrics_ms", "/metrics after that, p95, without the SDK's own", shown, "ms"),
        Figure("stats.sum_ms", f"adding up {_SHOWN} workers' numbers for /v1/stats, p95", summed, "ms"),
    ]  # fmt: skip


def _count(metrics: Metrics, meter: TrafficMeter, requests: int) -> float:
    """Seconds for all that a line's slice counts of an answer."""
    started = time.perf_counter()
    for number in range(requests):
        model, backend = _MODELS[number % 10], _BACKENDS[number // 10 % 10]
        failed = number % 10 == 9
        status, category = (500, Category.UPSTREAM_5XX) if failed else (200, Category.NONE)
        meter.ended(model, backend, status=status, category=category, seconds=0.5)
        meter.chatted(Endpoint.CHAT_COMPLETIONS, grouped=False, is_answer=not failed, seconds=0.5)
        meter.used(model, backend, _USAGE)
        metrics.request_seconds.labels(model).observe(0.5)
        metrics.results.labels(model, "success").inc()
        metrics.tenant_results.labels(metrics.tenants("acme"), "success").inc()
        metrics.prompt_tokens.labels(model).inc(100)
        metrics.generation_tokens.labels(model).inc(50)
    return time.perf_counter() - started


def _p95_ms(work: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(_SHOWN):
        started = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - started))
    return percentile(taken, 95)


SECTION = Section(
    "stats",
    "What counting costs",
    "20,000 requests of 10 models at 10 backends, one in ten of them failed, counted as a slice does; then "
    "the exposition of it all, and the sums that /v1/stats shows.",
    0.05,
    measure,
    on_the_page=False,
)
