"""What a worker shows of backends: who answers, whose circuits are open, which registry it goes by."""

import time
from collections.abc import Callable, Collection

from batchwright.inference.backends import Registry
from batchwright.telemetry.metrics import Metrics


def show_backends(registry: Registry, metrics: Metrics) -> None:
    """Every family is set as a whole, so that what is gone leaves no series behind."""
    families = (
        metrics.backend_up,
        metrics.backend_probe_seconds,
        metrics.backend_circuit_open,
        metrics.backend_outstanding,
        metrics.registry_info,
    )
    for family in families:
        family.clear()
    for backend in registry.backends:
        metrics.backend_up.labels(backend.url).set(not backend.is_away)
        metrics.backend_probe_seconds.labels(backend.url).set(backend.probe_seconds)
        metrics.backend_latency.labels(backend.url).observe(backend.probe_seconds)
    for route in registry.routes:
        for lane in route.lanes:
            labels = (route.model, lane.backend.url)
            metrics.backend_circuit_open.labels(*labels).set(lane.circuit.is_open)
            metrics.backend_outstanding.labels(*labels).set(lane.outstanding)
    metrics.backends_total.set(len(registry.backends))
    metrics.backends_healthy.set(sum(not backend.is_away for backend in registry.backends))
    served = sum(any(not lane.backend.is_away for lane in route.lanes) for route in registry.routes)
    metrics.models_available.set(served)
    metrics.registry_info.labels(registry.fingerprint).set(1)


def pending_requests(registry: Registry) -> dict[tuple[str, str], int]:
    """Under way, by model and backend."""
    lanes = [(route.model, lane) for route in registry.routes for lane in route.lanes]
    return {(model, lane.backend.url): lane.outstanding for model, lane in lanes}


class GoneSeries:
    """Takes away series of models and backends that are gone, a while after they were scraped once more.

    However often the registry changes, at most `_MOST` of them wait for that.
    """

    _KEPT_SECONDS = 600.0
    _MOST = 100

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._present: dict[str, frozenset[str]] = {}
        self._gone: dict[tuple[str, str], float] = {}  # label and value, since when; the oldest first

    def look(self, label: str, present: Collection[str]) -> None:
        """`present` are all values of the label there are."""
        before, now = self._present.get(label, frozenset()), self._clock()
        self._present[label] = frozenset(present)
        for value in present:
            self._gone.pop((label, value), None)
        for value in sorted(before.difference(present)):
            self._gone[label, value] = now
        for key, since in list(self._gone.items()):
            if len(self._gone) <= self._MOST and since > now - self._KEPT_SECONDS:
                break
            del self._gone[key]
            self._metrics.forget(*key)


def keep_to(
    registry: Registry, gone: GoneSeries, forget: Callable[[Collection[str], Collection[str]], None]
) -> None:
    """What a process has learnt goes with its model and backend; `forget` gets those that are there."""
    models, urls = registry.known, {backend.url for backend in registry.backends}
    forget(models, urls)
    gone.look("model", models)
    gone.look("backend", urls)
