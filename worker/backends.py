"""What a worker shows of backends: who answers, whose circuits are open, which registry it goes by."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

from batchwright.inference.backends import Registry
from batchwright.telemetry.metrics import Metrics


def follow_backends(registry: Registry, metrics: Metrics) -> None:
    """From now on probes are counted as they end, and gauges are what is at a scrape (S2-40)."""

    def probed(url: str, seconds: float) -> None:
        metrics.backend_latency.labels(url).observe(seconds)

    registry.on_probe.append(probed)
    metrics.before_shown.append(partial(show_backends, registry, metrics))


def show_backends(registry: Registry, metrics: Metrics) -> None:
    """Every family is set as a whole, so that what is gone leaves no series behind.

    A URL that is asked with several keys is one backend, and healthy if it is with each of them.
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
    shut: dict[tuple[str, str], bool] = {}
    pending: dict[tuple[str, str], int] = {}
    for route in registry.routes:
        for lane in route.lanes:
            key = (route.model, lane.backend.url)
            shut[key] = lane.circuit.is_open and shut.get(key, True)
            pending[key] = pending.get(key, 0) + lane.outstanding
    metrics.backend_circuit_open.replace(shut)
    metrics.backend_outstanding.replace(pending)
    metrics.backends_total.set(len(healthy))
    metrics.backends_healthy.set(sum(healthy.values()))
    served = sum(any(lane.backend.is_healthy for lane in route.lanes) for route in registry.routes)
    metrics.models_available.set(served)
    metrics.registry_problems.replace({(model,): len(said) for model, said in registry.problems.items()})
    metrics.registry_info.replace({(registry.fingerprint,): 1})


def pending_requests(registry: Registry) -> dict[tuple[str, str], int]:
    """Under way, by model and backend."""
    found = Counter[tuple[str, str]]()
    for route in registry.routes:
        for lane in route.lanes:
            found[route.model, lane.backend.url] += lane.outstanding
    return found


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
