"""Every metric of ours: names with unit suffixes, bounded labels, never an id or a message (R15)."""

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from batchwright.telemetry.families.api import ApiMetrics
from batchwright.telemetry.families.audits import AuditMetrics
from batchwright.telemetry.families.backends import BackendMetrics
from batchwright.telemetry.families.batches import BatchMetrics
from batchwright.telemetry.families.declare import Declare
from batchwright.telemetry.families.fleet import FleetMetrics
from batchwright.telemetry.families.jobs import JobMetrics
from batchwright.telemetry.families.microbatch import MicrobatchMetrics
from batchwright.telemetry.families.objects import StorageMetrics
from batchwright.telemetry.families.requests import RequestMetrics
from batchwright.telemetry.families.retention import RetentionMetrics
from batchwright.telemetry.families.traces import TraceMetrics
from batchwright.telemetry.families.traffic import TrafficMetrics
from batchwright.telemetry.labels import Bounded
from batchwright.telemetry.own_process import OwnProcess

_TENANTS = 20
_VERSION = version("batchwright")
_FAMILIES = (
    RequestMetrics,
    BackendMetrics,
    BatchMetrics,
    FleetMetrics,
    StorageMetrics,
    ApiMetrics,
    TraceMetrics,
    RetentionMetrics,
    AuditMetrics,
    MicrobatchMetrics,
    TrafficMetrics,
    JobMetrics,
)


class Metrics(
    RequestMetrics,
    BackendMetrics,
    BatchMetrics,
    FleetMetrics,
    StorageMetrics,
    ApiMetrics,
    TraceMetrics,
    RetentionMetrics,
    AuditMetrics,
    MicrobatchMetrics,
    TrafficMetrics,
    JobMetrics,
):
    """Declared once a process, on the process's own registry; handed to whoever counts.

    A family with labels has no series before it counts something; one without begins at 0.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, tenants: int = _TENANTS) -> None:
        """`tenants` is how many have a label of their own."""
        self.registry = registry or CollectorRegistry()
        self.tenants = Bounded(tenants)
        self.before_shown: list[Callable[[], None]] = []  # sets what is looked up at each scrape
        declare = Declare(self.registry)
        for family in _FAMILIES:
            family.__init__(self, declare)
        self.build = declare.gauge("build_info", "1, of the version that runs", ["version"])
        self.build.labels(_VERSION).set(1)
        self._families, self._by_label = declare.families, declare.by_label
        self._process = OwnProcess(self.registry)

    def pieces(self) -> list[bytes]:
        """All there is, in Prometheus' text format, to be put together once: copying a large text is dear."""
        for look in self.before_shown:
            look()
        return [*[family.text() for family in self._families], self._process.text()]

    def shown(self) -> bytes:
        return b"".join(self.pieces())

    def forget(self, label: str, value: str) -> None:
        """Takes away every series that has it; one that is counted again begins at 0."""
        for family in self._by_label[label]:
            family.remove_by_labels({label: value})
