"""Metrics of backends as one process sees them: health, circuit breakers, and requests sent to
fallback models.
"""

from batchwright.telemetry.families.factory import MetricFactory


class BackendMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self._create_health(create)
        self._create_routing(create)
        self.registry_problems = create.gauge(
            "registry_problems",
            "Headers in a model's registration that are ignored because Batchwright sets them itself",
            ["model"],
        )
        self.registry_info = create.gauge(
            "registry_info",
            "Always 1; the label is the fingerprint of the registry in effect, which is equal in all worker "
            "and API processes with the same registry",
            ["fingerprint"],
        )

    def _create_health(self, create: MetricFactory) -> None:
        self.backend_up = create.gauge(
            "backend_up", "1 if the backend answered its last probe; no series before the first", ["backend"]
        )
        self.backend_probe_seconds = create.gauge(
            "backend_probe_latency_seconds", "Time of the last probe, answered or not", ["backend"]
        )
        self.backend_latency = create.histogram(
            "backend_latency_seconds", "Time of each probe of a backend, answered or not", ["backend"]
        )
        self.backends_total = create.gauge("backends", "Registered backends")
        self.backends_healthy = create.gauge(
            "backends_healthy", "Registered backends that answered their last probe"
        )
        self.models_available = create.gauge(
            "models_available", "Models that at least one healthy backend serves"
        )

    def _create_routing(self, create: MetricFactory) -> None:
        self.backend_circuit_open = create.gauge(
            "backend_circuit_open",
            "1 while the circuit breaker of the model at this backend is open, so that only probes are sent",
            ["model", "backend"],
        )
        self.backend_outstanding = create.gauge(
            "backend_outstanding_requests",
            "Requests that the backend has not answered yet",
            ["model", "backend"],
        )
        self.passed_on = create.counter(
            "requests_passed_on_total",
            "Requests that were sent to the next backend at once, without a wait",
            ["model"],
        )
        self.fallbacks = create.counter(
            "fallbacks_total",
            "Lines and interactive calls answered by another model, because all backends of their own model "
            "were unavailable",
            ["from_model", "to_model"],
        )
