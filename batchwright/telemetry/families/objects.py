"""Object storage, on whichever side of it a process is."""

from batchwright.telemetry.families.declare import QUICK, Declare


class StorageMetrics:
    def __init__(self, declare: Declare) -> None:
        self.storage_operations = declare.counter(
            "file_storage_operations_total",
            "Operations on the storage, and tries that were repeated, by outcome (S0-67)",
            ["operation", "component", "status"],
        )
        self.storage_seconds = declare.histogram(
            "file_storage_operation_duration_seconds",
            "Time of one operation on the storage with its retries, without what its caller does meanwhile",
            ["operation", "component"],
            buckets=QUICK,
        )
        self.storage_bytes = declare.counter(
            "file_storage_bytes_total", "Bytes stored and retrieved", ["operation", "component"]
        )
