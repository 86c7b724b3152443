"""Retention: what it deleted, and whether it does."""

from batchwright.telemetry.families.declare import Declare


class RetentionMetrics:
    def __init__(self, declare: Declare) -> None:
        self.retention_deleted = declare.counter(
            "retention_deleted_total",
            "Files, rows or objects that retention deleted, by what they were",
            ["kind"],
        )
        self.retention_deleted_bytes = declare.counter(
            "retention_deleted_bytes_total", "Bytes of what retention deleted from storage", ["kind"]
        )
        self.retention_failures = declare.counter(
            "retention_failures_total",
            "Attempts at retention that failed, and single things that cannot be deleted",
            ["kind"],
        )
        self.retention_succeeded_at = declare.gauge(
            "retention_last_success_timestamp_seconds",
            "When a kind was last gone through without a failure; before that, when its table was made",
            ["kind"],
        )
