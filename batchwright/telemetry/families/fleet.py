"""The fleet as a whole: live batches and queues. Looked at by control workers, the same numbers by each."""

from batchwright.telemetry.families.declare import Declare

_QUEUE = ("queue", "model")


class FleetMetrics:
    def __init__(self, declare: Declare) -> None:
        self._declare_queues(declare)
        self._declare_tenants(declare)
        self.jobs = declare.gauge("jobs", "Live batches by status (S1-228)", ["status"])
        self.oldest_job_age = declare.gauge(
            "oldest_job_age_seconds", "Since the oldest live batch of a status entered it", ["status"]
        )
        self.items = declare.gauge(
            "items", "Lines of live batches, `settled` or `pending` (S1-229)", ["status"]
        )
        self.model_lines_left = declare.gauge(
            "model_lines_left", "Lines of live batches for a model that have no result yet", ["model"]
        )
        self.at_risk = declare.gauge(
            "batches_at_risk", "Live batches that would not be done in time at the speed they have"
        )
        self.past_deadline = declare.gauge(
            "batches_past_deadline", "Live batches whose window has closed: they should end within moments"
        )
        self.without_run = declare.gauge(
            "batches_without_run",
            "Live batches whose workflow was terminated, or else ended from outside: nothing works on them",
        )
        self.observed_at = declare.gauge(
            "observed_timestamp_seconds",
            "When `batches`, `runs`, `retention`, `budgets` and `queues` were last looked at",
            ["source"],
        )

    def _declare_queues(self, declare: Declare) -> None:
        self.queue_depth = declare.gauge(
            "queue_depth", "Tasks that wait for a worker, as Temporal estimates them", _QUEUE
        )
        self.queue_oldest_age = declare.gauge(
            "queue_oldest_age_seconds", "How long the oldest task that waits for a worker has waited", _QUEUE
        )
        self.queue_pollers = declare.gauge(
            "queue_pollers", "Workers that asked for tasks of a queue within the last minutes", _QUEUE
        )

    def _declare_tenants(self, declare: Declare) -> None:
        self.tenant_jobs = declare.gauge("tenant_jobs", "Live batches of a tenant", ["tenant"])
        self.tenant_lines_left = declare.gauge(
            "tenant_lines_left", "Lines of a tenant's live batches that have no result yet", ["tenant"]
        )
        self.deadline_slack = declare.gauge(
            "deadline_slack_seconds",
            "Time to the deadline less the estimated time for the lines left, of the tenant's batch that has "
            "least",
            ["tenant"],
        )
        self.tenant_budget = declare.gauge(
            "tenant_token_budget",
            "Tokens a day that a tenant may use, of those with a budget that have used most of it",
            ["tenant"],
        )
        self.tenant_spent = declare.gauge(
            "tenant_tokens_used", "Tokens that these tenants' lines have used today (UTC)", ["tenant"]
        )
        self.organization_budget = declare.gauge(
            "organization_token_budget",
            "Tokens a day of an organization, of those with a budget that have used most of it",
            ["organization"],
        )
        self.organization_spent = declare.gauge(
            "organization_tokens_used",
            "Tokens that the lines of these organizations' tenants have used today (UTC)",
            ["organization"],
        )
        self.budgets_exhausted = declare.gauge(
            "token_budgets_exhausted",
            "Budgets of tokens that are used up today, of a `tenant`, `organization`, `user` or `key`",
            ["of"],
        )
        self.budgets_short = declare.gauge(
            "token_budgets_short",
            "Budgets of tokens of which more than nine tenths are used today, also those that are used up",
            ["of"],
        )
