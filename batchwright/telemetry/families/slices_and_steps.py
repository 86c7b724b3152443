"""Metrics of slices (parts of batches) and of a batch's other steps: reading its input, writing its files.

Each worker counts the slices and steps that it runs.
"""

from batchwright.telemetry.families.factory import MetricFactory


class StepMetrics:
    def __init__(self, create: MetricFactory) -> None:
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
        self.ingest_seconds = create.histogram(
            "plan_build_duration_seconds", "Time of one ingestion", ["size_bucket"]
        )
        self.finalize_seconds = create.histogram("finalize_latency_seconds", "Time of one finalization")


class SliceMetrics:
    """Metrics of slices (parts of batches): how often and how long they wait, and how long it takes to
    store their results.
    """

    def __init__(self, create: MetricFactory) -> None:
        self.flush_seconds = create.histogram("segment_flush_duration_seconds", "Time to store one segment")
        self.deferrals = create.counter(
            "model_group_deferrals_total",
            "Slices deferred because they could not send anything, by cause",
            ["model", "reason"],
        )
        self.deferred_items = create.counter(
            "model_group_deferred_items_total",
            "Lines without a result in deferred slices, as far as the slices were read",
            ["model", "reason"],
        )
        self.deferral_seconds = create.histogram(
            "model_group_deferral_seconds", "Time for which slices were deferred", ["model", "reason"]
        )
        self.waiting = create.gauge(
            "batches_waiting",
            "Models of batches that this worker deferred and has not resumed, by cause",
            ["reason"],
        )
