"""Every request to a backend, by model and backend (S2-11 to S2-34); chats also by how they are sent."""

from batchwright.telemetry.families.declare import S2_SECONDS, S2_TOKENS, Declare

_LANE = ("model", "backend")


class TrafficMetrics:
    def __init__(self, declare: Declare) -> None:
        self.requests = declare.counter(
            "requests_total",
            "Requests to a backend that had an end, by its HTTP status or `none`; also those to be asked "
            "again; lines that share a request count one each (S2-11)",
            [*_LANE, "status"],
        )
        self.backend_request_seconds = declare.histogram(
            "request_duration_seconds",
            "Time of a request to a backend, of a job since its submit; lines that share a request count one "
            "each (S2-12)",
            _LANE,
            buckets=S2_SECONDS,
        )
        self.errors = declare.counter(
            "errors_total",
            "Requests without a usable answer: `timeout`, `backend_error`, `parse_error`, `other` (the "
            "line's own fault, or unknown); and slices that found nobody to ask: `no_backend`, "
            "`no_healthy_backend` (S2-19)",
            ["error_type", "model"],
        )
        self.backend_request_tokens = declare.histogram(
            "request_tokens",
            "Tokens of an answer, `prompt` or `completion`, where the backend told them (S2-32)",
            [*_LANE, "type"],
            buckets=S2_TOKENS,
        )
        self.chat_items = declare.counter(
            "chat_items_executed_total",
            "Chats asked, by how their model's are sent: `concurrent`, or, where they may share requests, "
            "`sync_microbatch`; and by outcome (S1-267)",
            ["mode", "status"],
        )
        self.chat_seconds = declare.histogram(
            "chat_provider_latency_seconds",
            "Time from asking a chat to its outcome, shared or not (S1-271)",
            ["mode", "status"],
        )
