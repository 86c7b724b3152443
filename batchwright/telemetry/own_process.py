"""What prometheus_client collects of the process itself: memory, CPU, open files, garbage."""

import re

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from batchwright.telemetry.wording import NUMBER, in_words, literal

_NUMBER = re.compile(r"^([^#].*) \S+$", re.MULTILINE)


class OwnProcess:
    """Its lines are put into words once; they stay the same as long as their number does."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """`registry` has what is shown here too."""
        self._registry = CollectorRegistry()
        self._form, self._lines = b"", 0
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            registry.register(collector(registry=self._registry))

    def text(self) -> bytes:
        metrics = [*self._registry.collect()]
        numbers = [in_words(sample.value) for metric in metrics for sample in metric.samples]
        if len(numbers) != self._lines:
            self._form, self._lines = self._words(), len(numbers)
        return self._form % tuple(numbers)

    def _words(self) -> bytes:
        said = literal(generate_latest(self._registry).decode())
        return _NUMBER.sub(rf"\1 {NUMBER}", said).encode()
