"""Jobs that backends run (kinds `poll` and `callback`). Counted by inference workers, calls by the API."""

from batchwright.telemetry.families.declare import SECONDS, Declare

_HOW = ("model", "kind")


class JobMetrics:
    def __init__(self, declare: Declare) -> None:
        self.jobs_submitted = declare.counter(
            "backend_jobs_submitted_total", "Jobs that backends took, by kind: `poll` or `callback`", _HOW
        )
        self.jobs_running = declare.gauge(
            "backend_jobs_running", "Jobs that this worker waits for, also those taken over", _HOW
        )
        self.jobs_looked_at = declare.counter(
            "backend_jobs_polled_total",
            "Times that a job was asked after: `told` how it is, or `unclear`",
            [*_HOW, "result"],
        )
        self.jobs_ended = declare.counter(
            "backend_jobs_ended_total",
            "Jobs that are waited for no more: `completed`, `failed`, `lost`, `overdue`, or `given_up` with "
            "their batch",
            [*_HOW, "result"],
        )
        self.job_seconds = declare.histogram(
            "backend_job_duration_seconds",
            "From the submit of a job to the end that was heard of, through turns and crashes",
            _HOW,
            buckets=(*SECONDS, 900, 3600),
        )
        self.callbacks = declare.counter(
            "callbacks_total",
            "Calls of backends: `accepted`, `repeated`, and refused for their `token`, `expired`, `body`, "
            "`too_large`",
            ["result"],
        )
