"""Requests to backends: in flight, asked, answered, asked again, put off. Counted by inference workers."""

from batchwright.telemetry.families.declare import Declare


class RequestMetrics:
    def __init__(self, declare: Declare) -> None:
        self._declare_limits(declare)
        self.request_seconds = declare.histogram(
            "model_request_execution_duration_seconds",
            "Time of one request to a backend; of a job from its submit to its end (S0-65)",
            ["model"],
        )
        self.request_errors = declare.counter(
            "request_errors_by_model_total", "Lines settled with an error (S0-66)", ["model"]
        )
        self.results = declare.counter(
            "request_results_total",
            "Lines that got their result from a backend: `success` or `error`",
            ["model", "result"],
        )
        self.tenant_results = declare.counter(
            "tenant_request_results_total",
            "Lines of a tenant that got their result from a backend: `success` or `error`",
            ["tenant", "result"],
        )
        self.retries = declare.counter(
            "request_retries_total", "Requests to be asked again, by cause", ["model", "category"]
        )
        self.dead_letters = declare.counter(
            "dead_letters_total",
            "Lines given up after their last attempt; `http_error`, or the code of their line",
            ["model", "code"],
        )
        self.deferrals = declare.counter(
            "model_group_deferrals_total",
            "Slices that could send nothing and were put off, by cause (S1-264)",
            ["model", "reason"],
        )
        self.deferred_items = declare.counter(
            "model_group_deferred_items_total",
            "Lines without a result of slices put off, as far as they were read (S1-265)",
            ["model", "reason"],
        )
        self.deferral_seconds = declare.histogram(
            "model_group_deferral_seconds", "For how long slices were put off (S1-266)", ["model", "reason"]
        )
        self.waiting = declare.gauge(
            "batches_waiting",
            "Batches that this worker has put off and not gone on with, per model of theirs, by cause",
            ["reason"],
        )
        self.prompt_tokens = declare.counter(
            "batch_request_prompt_tokens_total",
            "Tokens of prompts, as backends report them (S0-68)",
            ["model"],
        )
        self.generation_tokens = declare.counter(
            "batch_request_generation_tokens_total",
            "Tokens of answers, as backends report them (S0-69)",
            ["model"],
        )
        self.flush_seconds = declare.histogram("segment_flush_duration_seconds", "Time to store one segment")

    def _declare_limits(self, declare: Declare) -> None:
        self.in_flight = declare.gauge(
            "processor_inflight_requests", "Requests of this worker in flight (S0-61)"
        )
        self.in_flight_max = declare.gauge(
            "processor_max_inflight_concurrency", "The in-flight limit of this worker over all models (S0-62)"
        )
        self.model_in_flight = declare.gauge(
            "model_inflight_requests", "Requests in flight per model (S0-63)", ["model"]
        )
        self.model_in_flight_max = declare.gauge(
            "model_max_inflight_concurrency",
            "The model's in-flight limit as it is now: its own, or what its backends take if that is less",
            ["model"],
        )
        self.backend_in_flight = declare.gauge(
            "backend_inflight_requests", "Requests in flight per backend", ["backend"]
        )
        self.backend_in_flight_max = declare.gauge(
            "backend_max_inflight_concurrency",
            "The in-flight limit of a backend as its answers have shown it, for all its models together",
            ["backend"],
        )
        self.backend_limit_changes = declare.counter(
            "backend_limit_changes_total",
            "Changes of a backend's in-flight limit: `refused`, `timed_out`, `slow`, `less_tried`, "
            "`more_tried`, `tried_in_vain`, `recovered`",
            ["backend", "cause"],
        )
        self.circuit_open = declare.gauge(
            "model_circuit_open", "1 while the model's backend takes nothing and is only tried", ["model"]
        )
        self.held_bytes = declare.gauge("processor_held_bytes", "Bodies and answers held in memory")
        self.held_bytes_max = declare.gauge(
            "processor_max_held_bytes",
            "Bodies and answers that may be held, as `BATCHWRIGHT_BYTE_BUDGET` says",
        )
        self.rate = declare.gauge(
            "rate_requests_per_second",
            "Rate in effect per queue; without a model: shared by all that have none of their own",
            ["model", "queue"],
        )
