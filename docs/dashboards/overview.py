"""The overview: is everything moving, and will it be done in time?"""

from docs.dashboards.panels import RATE, Board, Panel, Query, Row, gauges, quantiles, rates, stat

_NOW = Row(
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
            "Lines that got their result, a second.",
            f"sum(rate(batchwright_request_results_total[{RATE}]))",
            "reqps",
        ),
        stat(
            "At risk",
            "Live batches that would miss their window at the speed they have.",
            "max(batchwright_batches_at_risk)",
            alarm=1,
        ),
        stat(
            "Past deadline",
            "Live batches whose window has closed. They should end within moments.",
            "max(batchwright_batches_past_deadline)",
            alarm=1,
        ),
        stat(
            "Control workers",
            "Workers that polled the queue of workflows within the last minutes.",
            'max(batchwright_queue_pollers{queue="control"})',
        ),
    ],
)

_BATCHES = Row(
    "Batches",
    [
        Panel("Live batches", "By status.", gauges("max", "batchwright_jobs", "status"), stacked=True),
        Panel(
            "Oldest batch",
            "Since the oldest batch of a status entered it. Finalizing for long: look at the storage.",
            gauges("max", "batchwright_oldest_job_age_seconds", "status"),
            "s",
        ),
        Panel(
            "Waiting batches",
            "Put off by workers, by cause: the backend refuses our key or takes nothing, nobody serves "
            "the model, or all that is left waits for its next attempt.",
            gauges("sum", "batchwright_batches_waiting", "reason"),
            stacked=True,
        ),
        Panel(
            "Deadline slack",
            "Time to the deadline less the estimated time for what is left, of the batch that has "
            "least. Below zero it would be late.",
            [Query("min(batchwright_deadline_slack_seconds)", "least")],
            "s",
            least=None,
        ),
        Panel(
            "Batches ended",
            "A minute, by result. re_enqueued are steps given back to Temporal.",
            rates("batchwright_jobs_processed_total", "result, reason", every_minute=True),
        ),
        Panel(
            "Time of a batch",
            "From created_at to the end, of batches that ended lately.",
            quantiles("batchwright_batch_job_e2e_latency_seconds", "status"),
            "s",
        ),
    ],
)

_WORK = Row(
    "Work",
    [
        Panel(
            "Results",
            "Lines that got their result, a second.",
            rates("batchwright_request_results_total", "result"),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Lines left", "By model.", gauges("max", "batchwright_model_lines_left", "model"), stacked=True
        ),
        Panel(
            "Requests in flight",
            "Against the limit of all workers together.",
            [
                Query("sum(batchwright_processor_inflight_requests)", "in flight"),
                Query("sum(batchwright_processor_max_inflight_concurrency)", "limit"),
            ],
        ),
        Panel(
            "Asked again",
            "Requests a second that will be asked again, by cause.",
            rates("batchwright_request_retries_total", "category"),
            "reqps",
        ),
        Panel("Queues", "Tasks that wait for a worker.", gauges("max", "batchwright_queue_depth", "queue")),
        Panel(
            "Wait before ingestion",
            "From created_at until a worker reads the input.",
            quantiles("batchwright_job_queue_wait_duration_seconds"),
            "s",
        ),
    ],
)

_API = Row(
    "API",
    [
        Panel(
            "Answers",
            "A second, by status.",
            rates("batchwright_api_requests_total", "status"),
            "reqps",
            width=12,
        ),
        Panel(
            "Time of an answer",
            "95 of 100, uploads included.",
            quantiles("batchwright_api_request_duration_seconds", "route", '{route=~"/v1/.*"}', [0.95]),
            "s",
            width=12,
        ),
    ],
)

OVERVIEW = Board(
    "batchwright-overview",
    "Batchwright / Overview",
    "Is everything moving, and will it be done in time?",
    [_NOW, _BATCHES, _WORK, _API],
)
