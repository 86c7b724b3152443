"""Spans that did not reach the collector."""

from batchwright.telemetry.families.declare import Declare


class TraceMetrics:
    def __init__(self, declare: Declare) -> None:
        self.spans_dropped = declare.counter(
            "trace_spans_dropped_total",
            "Spans lost, because they came too fast (queue) or the collector took none (export)",
            ["reason"],
        )
