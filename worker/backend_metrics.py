"""Metrics of the backends in the worker's registry.

When a backend leaves the registry, its gauges are removed at once, and its other metric series after ten
minutes.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

from batchwright.inference.circuits.circuit_metrics import update_backend_circuits
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.telemetry.metrics import Metrics


def register_backend_metrics(registry: BackendRegistry, metrics: Metrics) -> None:
    """Keep the metrics of the registry's backends up to date from now on.

    The duration of each health check of a backend is recorded. The gauges of the backends are set each time
    the metrics are read.
    """

    def on_probe(url: str, seconds: float) -> None:
        metrics.backend_latency.labels(url).observe(seconds)

    registry.on_probe.append(on_probe)
    metrics.before_scrape.append(partial(update_backend_gauges, registry, metrics))


def update_backend_gauges(registry: BackendRegistry, metrics: Metrics) -> None:
    """Set the gauges of all backends. Remove the gauges of backends that are no longer in the registry.

    Backends with the same URL and different API keys share one health gauge. The gauge is 1 only if all of
    them are healthy.
    """
    healthy: dict[str, bool] = {}
    probes: dict[tuple[str, ...], float] = {}
    for backend in registry.backends:
        healthy[backend.url] = healthy.get(backend.url, True) and backend.is_healthy
        if backend.probe_seconds is not None:
            key = (backend.url,)
            probes[key] = max(backend.probe_seconds, probes.get(key, 0.0))
    metrics.backend_up.replace({key: healthy[key[0]] for key in probes})
    metrics.backend_probe_seconds.replace(probes)
    update_backend_circuits(registry.routers, metrics)
    outstanding: dict[tuple[str, str], int] = {}
    for router in registry.routers:
        model = metrics.models(router.model)
        for upstream in router.upstreams:
            key = (model, upstream.backend.url)
            outstanding[key] = outstanding.get(key, 0) + upstream.outstanding
    metrics.backend_outstanding.replace(outstanding)
    metrics.backends_total.set(len(healthy))
    metrics.backends_healthy.set(sum(healthy.values()))
    served = sum(
        any(upstream.backend.is_healthy for upstream in router.upstreams) for router in registry.routers
    )
    metrics.models_available.set(served)
    metrics.registry_problems.replace({(model,): len(found) for model, found in registry.problems.items()})
    metrics.registry_info.replace({(registry.fingerprint,): 1})


def outstanding_requests(registry: BackendRegistry) -> dict[tuple[str, str], int]:
    """Return how many requests of this worker are in flight, by (model, backend URL)."""
    found = Counter[tuple[str, str]]()
    for router in registry.routers:
        for upstream in router.upstreams:
            found[router.model, upstream.backend.url] += upstream.outstanding
    return found


def open_circuits(registry: BackendRegistry) -> frozenset[tuple[str, str]]:
    """Return each (model, backend URL) whose circuit breaker is open in this worker.

    A model may have several circuit breakers for the same URL. In this case, all of them must be open.
    """
    found: dict[tuple[str, str], bool] = {}
    for router in registry.routers:
        for upstream in router.upstreams:
            key = (router.model, upstream.backend.url)
            found[key] = upstream.circuit.is_open and found.get(key, True)
    return frozenset(key for key, is_open in found.items() if is_open)


class StaleSeriesRemover:
    """The cleanup of metric series, ten minutes after their model or backend has left the registry.

    The delay lets Prometheus scrape the last values. In the meantime, the series of at most `_MAX_STALE`
    removed models and backends are kept. If there are more, the oldest series are removed earlier.
    """

    _KEEP_SECONDS = 600.0
    _MAX_STALE = 100

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._present: dict[str, frozenset[str]] = {}
        self._stale: dict[tuple[str, str], float] = {}  # label and value, since when; oldest first

    def update(self, label: str, present: Collection[str], counted: Collection[str] = ()) -> None:
        """Record which models or backends exist now, and remove old series.

        The series of a model or backend are removed ten minutes after it ceased to exist.

        Args:
            label: name of the metric label: `model` or `backend`.
            present: values of the label (models or backend URLs) that exist now.
            counted: values of the label that have metric series. If a value is not in `present`, its series
                are removed after ten minutes, even if the value was never in an earlier `present`.
        """
        before, now = self._present.get(label, frozenset()), self._clock()
        self._present[label] = frozenset(present)
        for value in present:
            self._stale.pop((label, value), None)
        for value in sorted(before.union(counted).difference(present)):
            self._stale.setdefault((label, value), now)
        for key, since in list(self._stale.items()):
            if len(self._stale) <= self._MAX_STALE and since > now - self._KEEP_SECONDS:
                break
            del self._stale[key]
            self._metrics.remove_series(*key)


def forget_removed(
    registry: BackendRegistry,
    metrics: Metrics,
    stale: StaleSeriesRemover,
    forget: Callable[[Collection[str], Collection[str]], None],
) -> None:
    """Delete the state and the metrics of models and backends that are no longer in the registry.

    While a live batch needs a model, its metrics stay, even if no backend offers the model.

    Args:
        registry: the registry after the change.
        metrics: metrics of the process.
        stale: removes the metric series ten minutes later.
        forget: called with the remaining models and backend URLs. It deletes the state of all others.
    """
    models, urls = registry.known_models, {backend.url for backend in registry.backends}
    forget(models, urls)
    labels, listed = metrics.models, registry.registered_models
    labels.set_listed(listed)
    required = labels.unlisted & (models | labels.required)
    stale.update("model", listed | required, labels.unlisted)
    stale.update("backend", urls)
