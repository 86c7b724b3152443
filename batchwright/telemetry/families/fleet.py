"""Metrics of the fleet: batches that have not ended, task queues, tenants, budgets and maintenance.

Maintenance is the deletion of old data (retention) and the consistency check.

Each worker with the role `control` reports these metrics. All these workers report the same numbers, because
they read the numbers from the database and from Temporal.
"""

from batchwright.telemetry.families.factory import MetricFactory

_QUEUE_LABELS = ("queue", "model")


class FleetMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self._create_batches(create)
        self._create_queues(create)
        self._create_tenants(create)
        self._create_budgets(create)
        self.observed_at = create.gauge(
            "observed_timestamp_seconds",
            "Time of the last refresh of the fleet metrics, by source: `batches`, `forecasts`, `runs`, "
            "`retention`, `budgets`, `queues`",
            ["source"],
        )

    def _create_batches(self, create: MetricFactory) -> None:
        self.jobs = create.gauge("jobs", "Live batches by status", ["status"])
        self.oldest_job_age = create.gauge(
            "oldest_job_age_seconds",
            "Time since the oldest live batch with this status entered the status",
            ["status"],
        )
        self.items = create.gauge("items", "Lines of live batches, `settled` or `pending`", ["status"])
        self.model_lines_left = create.gauge(
            "model_lines_left", "Lines of live batches that have no result yet, by model", ["model"]
        )
        self.model_lines_due = create.gauge(
            "model_lines_due",
            "Lines without a result whose completion window ends within the horizon, by model and horizon: "
            "`1h`, `6h` or `24h`. Lines of batches that are paused or cancelled do not count",
            ["model", "horizon"],
        )
        self.model_required_rate = create.gauge(
            "model_required_results_per_second",
            "Lowest rate of results at which all lines would be settled within their completion windows, by "
            "model. Lines of batches that are paused or cancelled do not count",
            ["model"],
        )
        self.forecast_batches = create.gauge(
            "forecast_batches",
            "Batches in progress by priority and forecast: `fits` their completion window, `at_risk` or "
            "`late`. Batches that are paused or cancelled do not count",
            ["priority", "window"],
        )
        self.forecast_slack = create.gauge(
            "forecast_slack_seconds",
            "Time to the deadline minus the forecast remaining time at p90; the smallest among the batches "
            "of this priority, negative if one may be late",
            ["priority"],
        )
        self.at_risk = create.gauge(
            "batches_at_risk", "Live batches that would miss their deadline at their current speed"
        )
        self.past_deadline = create.gauge(
            "batches_past_deadline", "Live batches after their deadline; they should end within moments"
        )
        self.without_run = create.gauge(
            "batches_without_run",
            "Live batches whose workflow was terminated or otherwise ended from outside, so that nothing "
            "processes them",
        )

    def _create_queues(self, create: MetricFactory) -> None:
        self.queue_depth = create.gauge(
            "queue_depth", "Tasks that wait for a worker, as Temporal estimates them", _QUEUE_LABELS
        )
        self.queue_oldest_age = create.gauge(
            "queue_oldest_age_seconds", "Age of the oldest task that waits for a worker", _QUEUE_LABELS
        )
        self.queue_pollers = create.gauge(
            "queue_pollers", "Workers that polled the queue within the last minutes", _QUEUE_LABELS
        )

    def _create_tenants(self, create: MetricFactory) -> None:
        self.tenant_jobs = create.gauge("tenant_jobs", "Live batches of a tenant", ["tenant"])
        self.tenant_lines_left = create.gauge(
            "tenant_lines_left", "Lines of a tenant's live batches that have no result yet", ["tenant"]
        )
        self.deadline_slack = create.gauge(
            "deadline_slack_seconds",
            "Time to the deadline minus the estimated time for the remaining lines; the smallest among the "
            "tenant's batches",
            ["tenant"],
        )

    def _create_budgets(self, create: MetricFactory) -> None:
        self.tenant_budget = create.gauge(
            "tenant_budget",
            "Daily budget of a tenant, for the tenants that have used most of theirs: tokens, or cost in the "
            "unit of the currency",
            ["tenant", "quota"],
        )
        self.tenant_budget_used = create.gauge(
            "tenant_budget_used",
            "What a tenant has used of its budget today (UTC), for the tenants that have used most of theirs",
            ["tenant", "quota"],
        )
        self.organization_budget = create.gauge(
            "organization_budget",
            "Daily budget of an organization, for the organizations that have used most of theirs: tokens, "
            "or cost in the unit of the currency",
            ["organization", "quota"],
        )
        self.organization_budget_used = create.gauge(
            "organization_budget_used",
            "What the tenants of an organization have used of its budget today (UTC), for the organizations "
            "that have used most of theirs",
            ["organization", "quota"],
        )
        self.budgets_exhausted = create.gauge(
            "budgets_exhausted",
            "Daily budgets used up today, by owner: `tenant`, `organization`, `team`, `user` or `key`",
            ["of", "quota"],
        )
        self.budgets_short = create.gauge(
            "budgets_short",
            "Daily budgets of which more than 90 % is used today, including those that are used up",
            ["of", "quota"],
        )


class RetentionMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.retention_deleted = create.counter(
            "retention_deleted_total", "Files, rows and objects that retention deleted, by kind", ["kind"]
        )
        self.retention_deleted_bytes = create.counter(
            "retention_deleted_bytes_total", "Bytes that retention deleted from object storage", ["kind"]
        )
        self.retention_failures = create.counter(
            "retention_failures_total",
            "Failed retention runs, and single items that cannot be deleted",
            ["kind"],
        )
        self.retention_succeeded_at = create.gauge(
            "retention_last_success_timestamp_seconds",
            "Time of the last complete retention run of a kind; before the first run, the time at which the "
            "kind's table was created",
            ["kind"],
        )


class ConsistencyMetrics:
    def __init__(self, create: MetricFactory) -> None:
        self.consistency_differences = create.gauge(
            "consistency_differences",
            "Differences that the last check found, by kind; `left` still exist, `repaired` do not",
            ["kind", "state"],
        )
        self.checked_at = create.gauge(
            "consistency_check_last_timestamp_seconds",
            "Time at which the last check ended; before the first check, the time at which its table began",
        )
