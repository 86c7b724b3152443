"""Dashboard *Overview*, which shows if batches make progress and finish in time."""

from docs.dashboards.panels import (
    RATE,
    Dashboard,
    Panel,
    PanelQuery,
    PanelRow,
    gauges,
    quantiles,
    rates,
    stat,
)

_NOW = PanelRow(
    "Now",
    [
        stat("Live batches", "Batches that have not ended.", "sum(max by (status) (batchwright_jobs))"),
        stat(
            "Lines left",
            "Lines of live batches without a result.",
            'max(batchwright_items{status="pending"})',
        ),
        stat(
            "Results",
            "Lines per second that got their result.",
            f"sum(rate(batchwright_request_results_total[{RATE}]))",
            "reqps",
        ),
        stat(
            "At risk",
            "Live batches that do not finish in time at their current speed.",
            "max(batchwright_batches_at_risk)",
            alarm=1,
        ),
        stat(
            "Past deadline",
            "Live batches whose window is over. They should end within moments.",
            "max(batchwright_batches_past_deadline)",
            alarm=1,
        ),
        stat(
            "Control workers",
            "Workers that polled the workflow queue within the last minutes.",
            'max(batchwright_queue_pollers{queue="control"})',
        ),
    ],
)

_BATCHES = PanelRow(
    "Batches",
    [
        Panel("Live batches", "By status.", gauges("max", "batchwright_jobs", "status"), stacked=True),
        Panel(
            "Oldest batch",
            "Time since the oldest batch of each status entered it. Long `finalizing`: check the storage.",
            gauges("max", "batchwright_oldest_job_age_seconds", "status"),
            "s",
        ),
        Panel(
            "Waiting batches",
            "Deferred by workers, by cause: the backend refuses the key or all requests, no backend serves "
            "the model, or all remaining lines wait for a retry.",
            gauges("sum", "batchwright_batches_waiting", "reason"),
            stacked=True,
        ),
        Panel(
            "Deadline slack",
            "Time to the deadline minus the estimated time for the remaining lines, for the batch with "
            "the least slack. Below zero the batch would be late.",
            [PanelQuery("min(batchwright_deadline_slack_seconds)", "least")],
            "s",
            least=None,
        ),
        Panel(
            "Batches ended",
            "Per minute, by result. `re_enqueued` counts activities given back to Temporal.",
            rates("batchwright_jobs_processed_total", "result, reason", every_minute=True),
        ),
        Panel(
            "Batch duration",
            "From `created_at` to the end, for batches that ended recently.",
            quantiles("batchwright_batch_job_e2e_latency_seconds", "status"),
            "s",
        ),
    ],
)

_WORK = PanelRow(
    "Work",
    [
        Panel(
            "Results",
            "Lines per second that got their result.",
            rates("batchwright_request_results_total", "result"),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Lines left", "By model.", gauges("max", "batchwright_model_lines_left", "model"), stacked=True
        ),
        Panel(
            "Requests in flight",
            "Compared with the sum of all workers' limits.",
            [
                PanelQuery("sum(batchwright_processor_inflight_requests)", "in flight"),
                PanelQuery("sum(batchwright_processor_max_inflight_concurrency)", "limit"),
            ],
        ),
        Panel(
            "Retries",
            "Requests per second that will be retried, by cause.",
            rates("batchwright_request_retries_total", "category"),
            "reqps",
        ),
        Panel(
            "Queues",
            "Tasks that wait for a worker, by queue.",
            gauges("max", "batchwright_queue_depth", "queue"),
        ),
        Panel(
            "Wait before ingestion",
            "From created_at until a worker reads the input.",
            quantiles("batchwright_job_queue_wait_duration_seconds"),
            "s",
        ),
    ],
)

_BACKENDS = PanelRow(
    "Backends",
    [
        Panel(
            "Backends",
            "Backends that answered their last probe, and registered backends, per worker.",
            [
                PanelQuery("min(batchwright_backends_healthy)", "healthy"),
                PanelQuery("max(batchwright_backends)", "registered"),
            ],
        ),
        Panel(
            "Backends up",
            "Fraction of workers whose last probe of the backend succeeded.",
            gauges("avg", "batchwright_backend_up", "backend"),
            "percentunit",
            most=1,
        ),
        Panel(
            "Requests",
            "Requests to backends per second, by HTTP status; `none` if there was no response.",
            rates("batchwright_requests_total", "backend, status"),
            "reqps",
        ),
    ],
)

_API = PanelRow(
    "API",
    [
        Panel(
            "Responses",
            "Per second, by status.",
            rates("batchwright_api_requests_total", "status"),
            "reqps",
            width=12,
        ),
        Panel(
            "Response time",
            "95th percentile, including uploads.",
            quantiles("batchwright_api_request_duration_seconds", "route", '{route=~"/v1/.*"}', [0.95]),
            "s",
            width=12,
        ),
    ],
)

OVERVIEW = Dashboard(
    "batchwright-overview",
    "Batchwright / Overview",
    "Do batches make progress, and do they finish in time?",
    [_NOW, _BATCHES, _WORK, _BACKENDS, _API],
)
