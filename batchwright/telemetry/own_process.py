"""What prometheus_client tells of the process itself: memory, CPU, open files, garbage."""

import gc
import os
import re
import resource

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from batchwright.telemetry.wording import NUMBER, Form

_NUMBER = re.compile(r"^([^#].*) \S+$", re.MULTILINE)
_MEMORY, _OPEN = "/proc/self/statm", "/proc/self/fd"
_GARBAGE = {
    "python_gc_objects_collected_total": "collected",
    "python_gc_objects_uncollectable_total": "uncollectable",
    "python_gc_collections_total": "collections",
}


class OwnProcess:
    """Its words, and what never changes, are asked of prometheus_client once; what does is read here.

    Where there is no /proc, nothing is told of memory, CPU and files.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """`registry` has what is shown here too."""
        own = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            registry.register(collector(registry=own))
        self._form = Form(_NUMBER.sub(rf"\1 {NUMBER}", generate_latest(own).decode()))
        self._numbers = {
            (sample.name, sample.labels.get("generation", "")): sample.value
            for metric in own.collect()
            for sample in metric.samples
        }
        self._has_proc = ("process_open_fds", "") in self._numbers
        self._page = os.sysconf("SC_PAGE_SIZE")

    def text(self) -> bytes:
        if self._has_proc:
            self._look()
        for generation, counts in enumerate(gc.get_stats()):
            for name, kind in _GARBAGE.items():
                self._numbers[name, str(generation)] = float(counts[kind])
        return self._form.filled([*self._numbers.values()])

    def _look(self) -> None:
        virtual, resident, *_ = _read(_MEMORY).split()
        used = resource.getrusage(resource.RUSAGE_SELF)
        numbers = self._numbers
        numbers["process_virtual_memory_bytes", ""] = float(virtual) * self._page
        numbers["process_resident_memory_bytes", ""] = float(resident) * self._page
        numbers["process_cpu_seconds_total", ""] = used.ru_utime + used.ru_stime
        numbers["process_open_fds", ""] = float(len(os.listdir(_OPEN)))
        numbers["process_max_fds", ""] = float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _read(path: str) -> bytes:
    """A few numbers: without the buffers of `open`, which cost more than to read."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
