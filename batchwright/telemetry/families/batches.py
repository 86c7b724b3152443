"""Metrics of batches: how they ended, how long they took, and quotas that refused them."""

from batchwright.telemetry.families.factory import LONG_SECONDS, MetricFactory


class BatchMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self._create_ends(create)
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
