"""Creates metrics whose names begin with `batchwright_`, and limits the values of their model labels."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry

from batchwright.telemetry.labels import MODEL_LABELS, ModelLabels
from batchwright.telemetry.prometheus.metric_types import Counter, Gauge, Histogram

AnyFamily = Counter | Gauge | Histogram
_Family = TypeVar("_Family", Counter, Gauge, Histogram)
PREFIX = "batchwright_"
# Histogram buckets. Requests to backends have the buckets that the requirements name.
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REQUEST_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REQUEST_TOKENS = (10, 50, 100, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
LONG_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 604800, 1209600)


class MetricFactory:
    """A factory that creates and registers the metrics of one process.

    The argument `name` of a metric does not contain the prefix `batchwright_`. For a counter, `name` ends
    with `_total`.
    """

    def __init__(self, registry: CollectorRegistry, models: ModelLabels) -> None:
        self._registry, self._models = registry, models
        self.families: list[AnyFamily] = []
        self.by_label: defaultdict[str, list[AnyFamily]] = defaultdict(list)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        return self._register(Counter(PREFIX + name, help_text, labels))

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return self._register(Gauge(PREFIX + name, help_text, labels))

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return self._register(Histogram(PREFIX + name, help_text, labels, buckets))

    def _register(self, family: _Family) -> _Family:
        self._registry.register(family)
        self.families.append(family)
        family.label_bounds = [self._models if label in MODEL_LABELS else str for label in family.label_names]
        for label in family.label_names:
            self.by_label[label].append(family)
        return family
