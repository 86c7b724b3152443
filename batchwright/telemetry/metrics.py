"""Every metric of ours: names with unit suffixes, bounded labels, never an id or a message (R15)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LONG = (1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400)


class Metrics:
    """Declared once a process, on the process's own registry; handed to whoever counts."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        r = self.registry
        self.in_flight = Gauge(
            "batchwright_processor_inflight_requests", "Requests in flight (S0-61)", registry=r
        )
        self.in_flight_max = Gauge(
            "batchwright_processor_max_inflight_concurrency", "The global in-flight limit (S0-62)", registry=r
        )
        self.model_in_flight = Gauge(
            "batchwright_model_inflight_requests",
            "Requests in flight per model (S0-63)",
            ["model"],
            registry=r,
        )
        self.rate = Gauge(
            "batchwright_rate_requests_per_second",
            "Rate in effect per queue; without a model: shared by all that have none of their own",
            ["model", "queue"],
            registry=r,
        )
        self.request_seconds = Histogram(
            "batchwright_model_request_execution_duration_seconds",
            "Time of one request to a backend (S0-65)", ["model"], buckets=_SECONDS, registry=r,
        )  # fmt: skip
        self.request_errors = Counter(
            "batchwright_request_errors_by_model_total",
            "Lines settled with an error (S0-66)",
            ["model"],
            registry=r,
        )
        self.retries = Counter(
            "batchwright_request_retries_total", "Requests asked again, by cause", ["category"], registry=r
        )
        self.deferrals = Counter(
            "batchwright_model_group_deferrals_total",
            "Slices put off, by cause (S1-264)",
            ["reason"],
            registry=r,
        )
        self.prompt_tokens = Counter(
            "batchwright_batch_request_prompt_tokens_total", "As reported (S0-68)", ["model"], registry=r
        )
        self.generation_tokens = Counter(
            "batchwright_batch_request_generation_tokens_total", "As reported (S0-69)", ["model"], registry=r
        )
        self.flush_seconds = Histogram(
            "batchwright_segment_flush_duration_seconds",
            "Time to store one segment",
            buckets=_SECONDS,
            registry=r,
        )
        self.storage_operations = Counter(
            "batchwright_file_storage_operations_total",
            "Operations on the storage, and tries that were repeated, by outcome (S0-67)",
            ["operation", "component", "status"],
            registry=r,
        )
        self.storage_seconds = Histogram(
            "batchwright_file_storage_operation_duration_seconds",
            "Time of one operation on the storage with its retries, without what its caller does meanwhile",
            ["operation", "component"],
            buckets=_QUICK,
            registry=r,
        )
        self.storage_bytes = Counter(
            "batchwright_file_storage_bytes_total",
            "Bytes stored and retrieved",
            ["operation", "component"],
            registry=r,
        )
        self.ingest_seconds = Histogram(
            "batchwright_plan_build_duration_seconds", "Time of one ingestion (S0-64)", ["size_bucket"],
            buckets=_SECONDS, registry=r,
        )  # fmt: skip
        self.finalize_seconds = Histogram(
            "batchwright_finalize_latency_seconds",
            "Time of one finalization (S1-243)",
            buckets=_SECONDS,
            registry=r,
        )
        self.jobs_processed = Counter(
            "batchwright_jobs_processed_total", "Batches ended (S0-56)", ["result", "reason"], registry=r
        )
        self.e2e_seconds = Histogram(
            "batchwright_batch_job_e2e_latency_seconds", "From created_at to the end (S0-70)", ["status"],
            buckets=_LONG, registry=r,
        )  # fmt: skip
        self.api_requests = Counter(
            "batchwright_api_requests_total", "Answers of the API", ["method", "route", "status"], registry=r
        )
