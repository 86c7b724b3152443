"""Metrics of batches, of their steps (ingestion, sending in slices, finalization), and of webhooks.

Each step is counted by the worker that runs it.
"""

from batchwright.telemetry.families.factory import LONG_SECONDS, MetricFactory


class BatchMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self._create_ends(create)
        self._create_steps(create)
        self.quota_refusals = create.counter(
            "quota_refusals_total",
            "Requests and batches refused because a quota of their tenant is used up. "
            "`window_too_short`: batches refused because they cannot be done within their completion windows",
            ["tenant", "quota"],
        )
        self.duplicates = create.counter(
            "duplicate_lines_total",
            "Lines of ended batches that got the result of an equal line and were not sent",
            ["model"],
        )
        self.settled_lines = create.counter(
            "lines_settled_without_request_total",
            "Lines settled with an error that no request to a backend caused, by error code; the model is "
            "`other` if no backend serves it",
            ["model", "code"],
        )
        self.queue_wait_seconds = create.histogram(
            "job_queue_wait_duration_seconds",
            "Time from created_at or start_at until a worker starts to read the input",
            buckets=LONG_SECONDS,
        )
        self.ingest_seconds = create.histogram(
            "plan_build_duration_seconds", "Time of one ingestion", ["size_bucket"]
        )
        self.finalize_seconds = create.histogram("finalize_latency_seconds", "Time of one finalization")

    def _create_ends(self, create: MetricFactory) -> None:
        self.jobs_processed = create.counter(
            "jobs_processed_total",
            "Ended batches, and steps of batches returned to Temporal (result `re_enqueued`)",
            ["result", "reason"],
        )
        self.processing_seconds = create.histogram(
            "job_processing_duration_seconds",
            "Time from when a worker started to read the input until the batch ended, including ingestion "
            "and without the wait for that worker",
            ["size_bucket"],
            buckets=LONG_SECONDS,
        )
        self.e2e_seconds = create.histogram(
            "batch_job_e2e_latency_seconds",
            "Time from created_at or start_at until the batch ended",
            ["status"],
            buckets=LONG_SECONDS,
        )
        self.cancellations = create.counter(
            "batch_cancellation_total", "Cancelled batches, by the phase they had reached", ["phase"]
        )

    def _create_steps(self, create: MetricFactory) -> None:
        self.total_workers = create.gauge(
            "total_workers",
            "Ingestions, finalizations and slices that this worker runs at once at most",
        )
        self.active_workers = create.gauge(
            "active_workers", "Ingestions, finalizations and slices that this worker runs"
        )
        self.saturation = create.gauge(
            "worker_saturation_ratio",
            "active_workers divided by total_workers: 0 to 1",
        )
        self.step_failures = create.counter(
            "step_failures_total",
            "Failed attempts of a step; the end of a turn and a deferral are not failures",
            ["step", "type"],
        )
        self.finalization_retries = create.counter(
            "finalization_retries_total", "Retried finalizations, by result", ["result"]
        )
        self.recoveries = create.counter(
            "batch_startup_recovery_total",
            "Steps taken over from a lost worker, by status of the batch and by outcome",
            ["status", "action"],
        )
        self.output_copies = create.counter(
            "output_copies_total",
            "Batches whose files were copied to their output location, by result: `written` or `failed`",
            ["result"],
        )


class WebhookMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.webhook_attempts = create.counter(
            "webhook_attempts_total",
            "Requests to webhook endpoints, by result: `succeeded` or `failed`",
            ["result"],
        )
        self.webhook_deliveries = create.counter(
            "webhook_deliveries_total",
            "Webhook deliveries that ended, by result: `delivered`, or `failed` after the last attempt",
            ["result"],
        )
        self.webhook_attempt_seconds = create.histogram(
            "webhook_attempt_duration_seconds", "Time of one request to a webhook endpoint"
        )
        self.webhook_endpoints_disabled = create.counter(
            "webhook_endpoints_disabled_total",
            "Webhook endpoints that were disabled because every delivery had failed for 72 hours",
        )
        self.webhook_backlog_seconds = create.gauge(
            "webhook_backlog_age_seconds",
            "Age of the oldest event that is to be delivered and has no workflow yet; 0 if there is none",
        )
