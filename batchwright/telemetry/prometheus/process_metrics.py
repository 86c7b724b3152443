"""Metrics of the process itself: memory, CPU, open files, garbage collection."""

import gc
import os
import re
import resource

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from batchwright.telemetry.prometheus.text_format import NUMBER_PLACEHOLDER, TextTemplate

_VALUE_PATTERN = re.compile(r"^([^#].*) \S+$", re.MULTILINE)
_MEMORY_FILE, _OPEN_FILES = "/proc/self/statm", "/proc/self/fd"
_GARBAGE = {
    "python_gc_objects_collected_total": "collected",
    "python_gc_objects_uncollectable_total": "uncollectable",
    "python_gc_collections_total": "collections",
}


class ProcessMetrics:
    """Metrics of the process, with the names that prometheus_client uses.

    Systems without /proc have no metrics of memory, CPU and open files.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the process metrics in `registry`."""
        own = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            registry.register(collector(registry=own))
        text = generate_latest(own).decode()
        self._template = TextTemplate(_VALUE_PATTERN.sub(rf"\1 {NUMBER_PLACEHOLDER}", text))
        self._numbers = {
            (sample.name, sample.labels.get("generation", "")): sample.value
            for metric in own.collect()
            for sample in metric.samples
        }
        self._has_proc = ("process_open_fds", "") in self._numbers
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def text(self) -> bytes:
        """Read the current values, and return the metrics in Prometheus text format."""
        if self._has_proc:
            self._read_proc()
        for generation, counts in enumerate(gc.get_stats()):
            for name, kind in _GARBAGE.items():
                self._numbers[name, str(generation)] = float(counts[kind])
        return self._template.fill([*self._numbers.values()])

    def _read_proc(self) -> None:
        virtual, resident, *_ = _read(_MEMORY_FILE).split()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        numbers = self._numbers
        numbers["process_virtual_memory_bytes", ""] = float(virtual) * self._page_bytes
        numbers["process_resident_memory_bytes", ""] = float(resident) * self._page_bytes
        numbers["process_cpu_seconds_total", ""] = usage.ru_utime + usage.ru_stime
        numbers["process_open_fds", ""] = float(len(os.listdir(_OPEN_FILES)))
        numbers["process_max_fds", ""] = float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _read(path: str) -> bytes:
    """Return up to 4,096 bytes of a file. The file is read without a buffer, which is faster than `open`."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
