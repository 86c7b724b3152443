"""Batches and their steps: begun, waited, ended, taken over. Counted by the worker that did it."""

from batchwright.telemetry.families.declare import LONG, Declare


class BatchMetrics:
    def __init__(self, declare: Declare) -> None:
        self._declare_ends(declare)
        self._declare_steps(declare)
        self.quota_refusals = declare.counter(
            "quota_refusals_total",
            "Requests and batches refused because a quota of their tenant is used up",
            ["tenant", "quota"],
        )
        self.duplicates = declare.counter(
            "duplicate_lines_total",
            "Lines of ended batches that got the answer of another, and were not asked",
            ["model"],
        )
        self.queue_wait_seconds = declare.histogram(
            "job_queue_wait_duration_seconds",
            "From created_at until a worker begins to read the input (S0-58)",
            buckets=LONG,
        )
        self.ingest_seconds = declare.histogram(
            "plan_build_duration_seconds", "Time of one ingestion (S0-64)", ["size_bucket"]
        )
        self.finalize_seconds = declare.histogram(
            "finalize_latency_seconds", "Time of one finalization (S1-243)"
        )

    def _declare_ends(self, declare: Declare) -> None:
        self.jobs_processed = declare.counter(
            "jobs_processed_total",
            "Batches ended, and steps of batches given back to Temporal: `re_enqueued` (S0-56)",
            ["result", "reason"],
        )
        self.processing_seconds = declare.histogram(
            "job_processing_duration_seconds",
            "From in_progress_at to the end (S0-57)",
            ["size_bucket"],
            buckets=LONG,
        )
        self.e2e_seconds = declare.histogram(
            "batch_job_e2e_latency_seconds", "From created_at to the end (S0-70)", ["status"], buckets=LONG
        )
        self.cancellations = declare.counter(
            "batch_cancellation_total", "Batches cancelled, by how far they were (S0-71)", ["phase"]
        )

    def _declare_steps(self, declare: Declare) -> None:
        self.total_workers = declare.gauge(
            "total_workers", "Slots of this worker: ingestions, finalizations and slices at once (S0-59)"
        )
        self.active_workers = declare.gauge("active_workers", "Slots of this worker in use (S0-60)")
        self.saturation = declare.gauge(
            "worker_saturation_ratio", "Slots of this worker in use, of those it has: 0 to 1 (S1-234)"
        )
        self.step_failures = declare.counter(
            "step_failures_total",
            "Attempts of a step that failed; turns and deferrals are none",
            ["step", "type"],
        )
        self.finalization_retries = declare.counter(
            "finalization_retries_total", "Finalizations after a first attempt (S1-245)", ["result"]
        )
        self.recoveries = declare.counter(
            "batch_startup_recovery_total",
            "What became of steps whose earlier attempt was lost with its worker (S0-15)",
            ["status", "action"],
        )
