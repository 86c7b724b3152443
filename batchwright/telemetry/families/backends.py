"""Backends as a worker sees them: who answers, who is tried only, what went elsewhere."""

from batchwright.telemetry.families.declare import Declare


class BackendMetrics:
    def __init__(self, declare: Declare) -> None:
        self.backend_up = declare.gauge(
            "backend_up",
            "1 where the backend answered its last probe; none before its first (S2-28)",
            ["backend"],
        )
        self.backend_probe_seconds = declare.gauge(
            "backend_probe_latency_seconds",
            "Time of the last probe of a backend, answered or not (S2-28)",
            ["backend"],
        )
        self.backend_latency = declare.histogram(
            "backend_latency_seconds",
            "Time of every probe of a backend, answered or not (S2-29)",
            ["backend"],
        )
        self.backends_total = declare.gauge("backends", "Backends that are registered (S2-36)")
        self.backends_healthy = declare.gauge(
            "backends_healthy", "Registered backends that answered their last probe (S2-37)"
        )
        self.models_available = declare.gauge(
            "models_available", "Models that some healthy backend serves (S2-38)"
        )
        self.backend_circuit_open = declare.gauge(
            "backend_circuit_open",
            "1 while the backend takes nothing of the model and is only tried",
            ["model", "backend"],
        )
        self.backend_outstanding = declare.gauge(
            "backend_outstanding_requests",
            "Requests that a backend has not answered yet (S2-39)",
            ["model", "backend"],
        )
        self.passed_on = declare.counter(
            "requests_passed_on_total", "Requests that went to the next backend at once (S4-10)", ["model"]
        )
        self.hedged = declare.counter(
            "requests_hedged_total",
            "Lines that waited so long that a second backend was asked too: whether its answer won or lost",
            ["model", "result"],
        )
        self.fallbacks = declare.counter(
            "fallbacks_total",
            "Lines that another model answered, as all backends of their own were away (S2-24)",
            ["from_model", "to_model"],
        )
        self.registry_problems = declare.gauge(
            "registry_problems",
            "Headers of a model's registration that are not heeded, as they would stand for one of ours",
            ["model"],
        )
        self.registry_info = declare.gauge(
            "registry_info",
            "1, of the registry in effect: equal in workers and API processes that follow one (S1-274)",
            ["fingerprint"],
        )
