"""Metrics of requests to backends, and of callbacks from backends.

Inference workers count the requests. The API counts the callbacks.
"""

from batchwright.telemetry.families.factory import (
    REQUEST_SECONDS,
    REQUEST_TOKENS,
    SECONDS,
    SHORT_SECONDS,
    MetricFactory,
)

GROUP_SIZES = (1, 2, 4, 8, 16, 32, 64)  # histogram buckets: lines in one shared request
_BACKEND_LABELS = ("model", "backend")
_JOB_LABELS = ("model", "kind")


class RequestMetrics:
    """Metrics of limits, circuit breakers, hooks, results, retries, tokens and costs of requests.

    The limits are on concurrency, on rates, and on bytes in memory.
    """

    def __init__(self, create: MetricFactory) -> None:
        self._create_limits(create)
        self._create_results(create)
        self.hook_seconds = create.histogram(
            "hook_duration_seconds",
            "Time that all hooks took to check one request before it was sent, by result: `allowed`, "
            "`rejected` or `failed`",
            ["endpoint", "result"],
            buckets=SHORT_SECONDS,
        )

    def _create_limits(self, create: MetricFactory) -> None:
        self.in_flight = create.gauge("processor_inflight_requests", "Requests of this worker in flight")
        self.in_flight_max = create.gauge(
            "processor_max_inflight_concurrency", "Concurrency limit of this worker over all models"
        )
        self.model_in_flight = create.gauge(
            "model_inflight_requests", "Requests in flight per model", ["model"]
        )
        self.model_in_flight_max = create.gauge(
            "model_max_inflight_concurrency",
            "Current concurrency limit of the model: its own limit or its backends', whichever is less",
            ["model"],
        )
        self.backend_in_flight = create.gauge(
            "backend_inflight_requests", "Requests in flight per backend", ["backend"]
        )
        self.backend_in_flight_max = create.gauge(
            "backend_max_inflight_concurrency",
            "Concurrency limit of a backend in the worker, over all its models: the adaptive one, or its "
            "part of the fleet's if that is lower",
            ["backend"],
        )
        self.backend_limit_changes = create.counter(
            "backend_limit_changes_total",
            "Changes of a backend's adaptive concurrency limit, by cause: `rejected`, `busy`, `timed_out`, "
            "`slow`, `decrease_probe`, `increase_probe`, `probe_reverted`, `recovered`",
            ["backend", "cause"],
        )
        self.limited_seconds = create.counter(
            "model_limited_seconds_total",
            "Time for which lines of a model waited because of a limit, summed over their tenants: "
            "`tenant_max_in_flight`, `tenant_requests_per_minute`, `tenant_tokens_per_minute`, "
            "`key_max_in_flight`, `model_requests_per_minute`, `model_tokens_per_minute`, `tenant_hold`, "
            "`model_hold`",
            ["model", "limit"],
        )
        self.tenant_limited_seconds = create.counter(
            "tenant_limited_seconds_total",
            "Time for which lines of a tenant waited because of a limit of the tenant or of its API keys, "
            "summed over models; limits as in `model_limited_seconds_total`",
            ["tenant", "limit"],
        )
        self.circuit_open = create.gauge(
            "model_circuit_open",
            "1 while the circuit breakers of all of the model's own backends are open",
            ["model"],
        )
        self.held_bytes = create.gauge(
            "processor_held_bytes", "Bytes of request bodies and responses held in memory"
        )
        self.held_bytes_max = create.gauge(
            "processor_max_held_bytes",
            "Limit of the bytes of request bodies and responses held in memory (`BATCHWRIGHT_BYTE_BUDGET`)",
        )
        self.rate = create.gauge(
            "rate_requests_per_second",
            "Rate limit in effect per queue; an empty model stands for the limit that all models without a "
            "limit of their own share",
            ["model", "queue"],
        )

    def _create_results(self, create: MetricFactory) -> None:
        self.request_seconds = create.histogram(
            "model_request_execution_duration_seconds",
            "Time of one request to a backend; for a job, from its submission to its end",
            ["model"],
        )
        self.request_errors = create.counter(
            "request_errors_by_model_total", "Lines settled with an error", ["model"]
        )
        self.results = create.counter(
            "request_results_total",
            "Lines whose result came from a backend: `success` or `error`",
            ["model", "result"],
        )
        self.tenant_results = create.counter(
            "tenant_request_results_total",
            "Lines of a tenant whose result came from a backend: `success` or `error`",
            ["tenant", "result"],
        )
        self.retries = create.counter(
            "request_retries_total", "Requests to be retried, by cause", ["model", "category"]
        )
        self.dead_letters = create.counter(
            "dead_letters_total",
            "Lines that failed their last attempt; the code is `http_error` or the error code of the line",
            ["model", "code"],
        )
        self.prompt_tokens = create.counter(
            "batch_request_prompt_tokens_total", "Prompt tokens that backends reported", ["model"]
        )
        self.generation_tokens = create.counter(
            "batch_request_generation_tokens_total", "Completion tokens that backends reported", ["model"]
        )
        self.request_cost = create.counter(
            "request_cost_total",
            "Cost of lines that succeeded, at the prices of their batches, in the unit of the currency",
            ["model", "currency"],
        )


class TrafficMetrics:
    """Metrics of all requests to backends: status, duration, errors and tokens.

    Chats (chat completions) are also counted by mode: `sync_microbatch` if chats of the model may share
    requests, otherwise `concurrent`.
    """

    def __init__(self, create: MetricFactory) -> None:
        self.requests = create.counter(
            "requests_total",
            "Completed requests to a backend by HTTP status, or `none` without a response. Retried requests "
            "count each time; lines in a shared request count one each",
            [*_BACKEND_LABELS, "status"],
        )
        self.backend_request_seconds = create.histogram(
            "request_duration_seconds",
            "Time of a request to a backend; for a job, since its submission. Each line of a shared "
            "request counts",
            _BACKEND_LABELS,
            buckets=REQUEST_SECONDS,
        )
        self.errors = create.counter(
            "errors_total",
            "Requests without a usable response: `timeout`, `backend_error`, `parse_error`, `other` (caused "
            "by the line, or unknown); slices that found no backend: `no_backend`, `no_healthy_backend`; "
            "lines of a model that no backend serves: `no_backend`",
            ["error_type", "model"],
        )
        self.backend_request_tokens = create.histogram(
            "request_tokens",
            "Tokens per response, `prompt` or `completion`, if the backend reported them",
            [*_BACKEND_LABELS, "type"],
            buckets=REQUEST_TOKENS,
        )
        self.chat_items = create.counter(
            "chat_items_executed_total",
            "Chats sent, by outcome and mode: `concurrent`, or `sync_microbatch` if chats of the model may "
            "share requests",
            ["mode", "status"],
        )
        self.chat_seconds = create.histogram(
            "chat_provider_latency_seconds",
            "Time from sending a chat to its outcome, in a shared request or alone",
            ["mode", "status"],
        )


class JobMetrics:
    """Metrics of jobs: requests whose results backends return later.

    Either a worker polls for the result of a job, or the backend sends it in a callback.
    """

    def __init__(self, create: MetricFactory) -> None:
        self.jobs_submitted = create.counter(
            "backend_jobs_submitted_total", "Jobs that backends accepted, by kind", _JOB_LABELS
        )
        self.jobs_running = create.gauge(
            "backend_jobs_running", "Jobs that this worker waits for, including those taken over", _JOB_LABELS
        )
        self.jobs_polled = create.counter(
            "backend_jobs_polled_total",
            "Job status polls by result: `ok` or `inconclusive`",
            [*_JOB_LABELS, "result"],
        )
        self.jobs_ended = create.counter(
            "backend_jobs_ended_total",
            "Jobs that this worker no longer waits for: `completed`, `failed`, `lost`, `overdue`, or "
            "`given_up` with their batch",
            [*_JOB_LABELS, "result"],
        )
        self.job_seconds = create.histogram(
            "backend_job_duration_seconds",
            "Time from the submission of a job to its reported end, across turns and worker crashes",
            _JOB_LABELS,
            buckets=(*SECONDS, 900, 3600),
        )
        self.callbacks = create.counter(
            "callbacks_total",
            "Callbacks of backends: `accepted`, `repeated`, or refused for their `token`, `expired`, `body`, "
            "`too_large`, or because the API has `no_room`",
            ["result"],
        )


class MicrobatchMetrics:
    """Metrics of shared requests. A shared request contains several lines of batches."""

    def __init__(self, create: MetricFactory) -> None:
        self._create_lines(create)
        self._create_chats(create)

    def _create_lines(self, create: MetricFactory) -> None:
        self.microbatch_requests = create.counter(
            "microbatch_requests_total", "Shared requests, by outcome", ["model", "category"]
        )
        self.microbatch_inputs = create.counter(
            "microbatch_inputs_total", "Lines in shared requests", ["model"]
        )
        self.microbatch_size = create.histogram(
            "microbatch_size", "Lines in one shared request", ["model"], buckets=GROUP_SIZES
        )
        self.microbatch_alone = create.counter(
            "microbatch_isolation_fallback_total",
            "Groups of lines that were sent one by one in the end",
            ["model"],
        )
        self.microbatch_ineligible = create.counter(
            "microbatch_ineligible_items_total",
            "Lines that could not share a request because of their `shape` or `tokens`, or because failures "
            "`shrunk` requests to one line",
            ["model", "reason"],
        )
        self.microbatch_retry_seconds = create.histogram(
            "microbatch_retry_delay_seconds",
            "Delay before a shared request is sent again",
            ["model", "category"],
        )
        self.microbatch_requeues = create.counter(
            "microbatch_requeues_total",
            "Failed shared requests by what follows: `repeated` unchanged, `halved`, or its lines `put_back` "
            "to be sent later",
            ["model", "category", "result"],
        )

    def _create_chats(self, create: MetricFactory) -> None:
        self.chat_groups = create.counter(
            "chat_microbatch_requests_total",
            "Requests that several chats shared, by outcome: `success` or `error`",
            ["status"],
        )
        self.chat_fallbacks = create.counter(
            "chat_microbatch_fallbacks_total",
            "Chats sent alone although chats of the model may share requests: because of their `shape` or "
            "`tokens`, because failures `shrunk` requests to one line, or after a shared request that could "
            "not be `joined`, was `refused`, could not be `split` or `failed`",
            ["reason"],
        )
        self.chat_group_size = create.histogram(
            "chat_microbatch_size", "Chats in one shared request", buckets=GROUP_SIZES
        )
