"""All metrics of Batchwright. Names end with the unit. Labels never contain an id or a message."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from batchwright.telemetry.families.backends import BackendMetrics
from batchwright.telemetry.families.batches import BatchMetrics
from batchwright.telemetry.families.factory import MetricFactory
from batchwright.telemetry.families.fleet import ConsistencyMetrics, FleetMetrics, RetentionMetrics
from batchwright.telemetry.families.interactive import InteractiveMetrics
from batchwright.telemetry.families.process import ApiMetrics, RuntimeMetrics, StorageMetrics
from batchwright.telemetry.families.requests import (
    JobMetrics,
    MicrobatchMetrics,
    RequestMetrics,
    TrafficMetrics,
)
from batchwright.telemetry.families.slices_and_steps import SliceMetrics, StepMetrics
from batchwright.telemetry.families.webhooks import WebhookMetrics
from batchwright.telemetry.labels import MODEL_LABELS, BoundedLabel, ModelLabels
from batchwright.telemetry.prometheus.process_metrics import ProcessMetrics

_TENANTS = 20
_UNLISTED_MODELS = 100
_FAMILIES = (
    RequestMetrics,
    BackendMetrics,
    BatchMetrics,
    StepMetrics,
    SliceMetrics,
    FleetMetrics,
    StorageMetrics,
    ApiMetrics,
    RuntimeMetrics,
    RetentionMetrics,
    ConsistencyMetrics,
    MicrobatchMetrics,
    TrafficMetrics,
    JobMetrics,
    WebhookMetrics,
    InteractiveMetrics,
)


class Metrics(
    RequestMetrics,
    BackendMetrics,
    BatchMetrics,
    StepMetrics,
    SliceMetrics,
    FleetMetrics,
    StorageMetrics,
    ApiMetrics,
    RuntimeMetrics,
    RetentionMetrics,
    ConsistencyMetrics,
    MicrobatchMetrics,
    TrafficMetrics,
    JobMetrics,
    WebhookMetrics,
    InteractiveMetrics,
):
    """All metrics of one process. Create one instance, and pass it to all code that updates metrics.

    A metric without labels starts at 0. A metric with labels has no values until something is counted.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, tenants: int = _TENANTS) -> None:
        """Create all metrics.

        The first `tenants` tenants get their own label values. All later tenants share one label value.
        """
        self.registry = registry or CollectorRegistry()
        self.tenants = BoundedLabel(tenants)
        self.models = ModelLabels(_UNLISTED_MODELS)
        self.before_scrape: list[Callable[[], None]] = []  # called before a scrape, to set gauges
        create = MetricFactory(self.registry, self.models)
        for families in _FAMILIES:
            families.__init__(self, create)
        self._families, self._by_label = create.families, create.by_label
        self._process = ProcessMetrics(self.registry)

    def render_parts(self) -> list[bytes]:
        """Return all metrics in Prometheus text format, in several parts for the caller to join."""
        for refresh in self.before_scrape:
            refresh()
        return [*[family.text() for family in self._families], self._process.text()]

    def render(self) -> bytes:
        return b"".join(self.render_parts())

    def remove_series(self, label: str, value: str) -> None:
        """Remove every metric series that has the value `value` in the label `label`.

        A series has the values of one metric for one combination of label values. If a removed series is
        counted again, it starts at 0.

        If `label` is `model`, do two more things:

        - Remove the series with this value in the labels `from_model` or `to_model`.
        - If the model is not registered, free its label value for another model that is not registered.
        """
        names = MODEL_LABELS if label == "model" else (label,)
        for name in names:
            for family in self._by_label[name]:
                family.remove_by_labels({name: value})
        if label == "model":
            self.models.release(value)
