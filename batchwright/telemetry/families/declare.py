"""How a family is declared: our prefix, the process's registry, buckets by how long the thing takes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry

from batchwright.telemetry.collectors import Counter, Gauge, Histogram

AnyFamily = Counter | Gauge | Histogram
_Made = TypeVar("_Made", Counter, Gauge, Histogram)
PREFIX = "batchwright_"
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
S2_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # S2-R1
S2_TOKENS = (10, 50, 100, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
LONG = (1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 604800, 1209600)


class Declare:
    """Names are given without the prefix, and counters with `_total`, as they are scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.families: list[AnyFamily] = []
        self.by_label: defaultdict[str, list[AnyFamily]] = defaultdict(list)  # those that have it

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        return self._noted(Counter(PREFIX + name, meaning, labels))

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return self._noted(Gauge(PREFIX + name, meaning, labels))

    def histogram(
        self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return self._noted(Histogram(PREFIX + name, meaning, labels, buckets))

    def _noted(self, family: _Made) -> _Made:
        self._registry.register(family)
        self.families.append(family)
        for label in family.label_names:
            self.by_label[label].append(family)
        return family
