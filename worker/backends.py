"""What a worker shows of backends: who answers, whose circuits are open, which registry it goes by."""

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
