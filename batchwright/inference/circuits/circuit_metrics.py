"""Gauges of the circuit breakers of one process, worker or API."""

from collections.abc import Iterable

from batchwright.inference.router import ModelRouter
from batchwright.telemetry.metrics import Metrics


def update_backend_circuits(routers: Iterable[ModelRouter], metrics: Metrics) -> None:
    """Set the circuit gauge of each model at each backend: 1 if its circuit breaker is open.

    Remove all other gauges. Several circuit breakers of a backend may have the same label, for example if
    models share a label. The gauge of this label is 1 only if all of these circuit breakers are open.
    """
    is_open: dict[tuple[str, ...], bool] = {}
    for router in routers:
        model = metrics.models(router.model)
        for upstream in router.upstreams:
            key = (model, upstream.backend.url)
            is_open[key] = upstream.circuit.is_open and is_open.get(key, True)
    metrics.backend_circuit_open.replace(is_open)


def update_model_circuits(routers: Iterable[ModelRouter], metrics: Metrics) -> None:
    """Set the gauge of each model in `routers`. Remove the gauges of all other models.

    Models that share a label have no gauge, because one gauge cannot show the state of several models.
    """
    metrics.circuit_open.replace(
        {
            (router.model,): router.all_own_circuits_open
            for router in routers
            if metrics.models(router.model) == router.model
        }
    )
