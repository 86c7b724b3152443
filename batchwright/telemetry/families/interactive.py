"""Metrics of interactive calls: requests outside of batches, which an API process sends to backends."""

from batchwright.telemetry.families.factory import REQUEST_SECONDS, MetricFactory


class InteractiveMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.interactive_requests = create.counter(
            "interactive_requests_total",
            "Interactive calls that have ended, by the HTTP status that the client got; `cut` if the answer "
            "broke off, `disconnected` if the client left",
            ["model", "result"],
        )
        self.interactive_in_flight = create.gauge(
            "interactive_inflight_requests", "Interactive calls in flight per backend", ["backend"]
        )
        self.interactive_seconds = create.histogram(
            "interactive_first_byte_seconds",
            "Time from an interactive call to the head of its answer",
            ["model"],
            buckets=REQUEST_SECONDS,
        )
        self.interactive_tokens = create.counter(
            "interactive_tokens_total",
            "Tokens of interactive calls, as backends reported them, or estimated: `prompt` or `completion`",
            ["model", "kind"],
        )
        self.interactive_cost = create.counter(
            "interactive_cost_total",
            "Cost of interactive calls, at the prices of their models, in the unit of the currency",
            ["model", "currency"],
        )
