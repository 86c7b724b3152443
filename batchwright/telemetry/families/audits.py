"""The audit: what the last one found, and when that was."""

from batchwright.telemetry.families.declare import Declare


class AuditMetrics:
    def __init__(self, declare: Declare) -> None:
        self.audit_differences = declare.gauge(
            "audit_differences",
            "Found by the last audit, by what differs: `left` are still there, `repaired` are not",
            ["kind", "state"],
        )
        self.audited_at = declare.gauge(
            "audit_last_timestamp_seconds", "When the last audit ended; before that, when its table was made"
        )
