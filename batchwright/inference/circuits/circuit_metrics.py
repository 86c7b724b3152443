"""Set the metrics that show which circuit breakers of a process (worker or API) are open."""

from collections.abc import Iterable

from batchwright.inference.router import ModelRouter
from batchwright.telemetry.metrics import Metrics


def update_backend_circuits(routers: Iterable[ModelRouter], metrics: Metrics) -> None:
    """Set a gauge metric for each model at each backend: 1 if its circuit breaker is open, otherwise 0.

    Remove the gauges of models and backends that are not in `routers`. Models with the same metric label
    share one gauge for each backend. A shared gauge is 1 only if the circuit breakers of all its models are
    open.
    """
    is_open: dict[tuple[str, ...], bool] = {}
    for router in routers:
        model = metrics.models(router.model)
        for upstream in router.upstreams:
            key = (model, upstream.backend.url)
            is_open[key] = upstream.circuit.is_open and is_open.get(key, True)
    metrics.backend_circuit_open.replace(is_open)


def update_model_circuits(routers: Iterable[ModelRouter], metrics: Metrics) -> None:
    """Set a gauge metric for each model: 1 if the circuit breakers of all its backends are open, otherwise 0.

    Backends of fallback models do not count. Remove the gauges of models that are not in `routers`. Models
    that share a metric label have no gauge, because one gauge cannot show the state of several models.
    """
    metrics.circuit_open.replace(
        {
            (router.model,): router.all_own_circuits_open
            for router in routers
            if metrics.models(router.model) == router.model
        }
    )
