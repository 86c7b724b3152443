"""Dashboard for a model, and dashboard for a tenant."""

from docs.dashboards.panels import (
    RATE,
    BoardVariable,
    Dashboard,
    Panel,
    PanelQuery,
    PanelRow,
    gauges,
    quantiles,
    rates,
)

_M, _T = '{model=~"$model"}', '{tenant=~"$tenant"}'
_BUDGET = '{quota=~"(tokens|cost)_per_day",tenant=~"$tenant"}'

_PROGRESS = PanelRow(
    "Progress",
    [
        Panel(
            "Lines left",
            "Lines of live batches without a result.",
            gauges("max", "batchwright_model_lines_left", "model", _M),
        ),
        Panel(
            "Results",
            "Per second, successes and errors.",
            rates("batchwright_request_results_total", "model, result", _M),
            "reqps",
        ),
        Panel(
            "Time left",
            "Lines left divided by the speed of the last minutes. No point is drawn while no line settles.",
            [
                PanelQuery(
                    f"max by (model) (batchwright_model_lines_left{_M}) / "
                    f"(sum by (model) (rate(batchwright_request_results_total{_M}[5m])) > 0)",
                    "{{model}}",
                )
            ],
            "s",
        ),
        Panel(
            "Lines due",
            "Lines without a result whose completion window ends within 1, 6 or 24 hours.",
            gauges("max", "batchwright_model_lines_due", "model, horizon", _M),
        ),
        Panel(
            "Required results",
            "Lowest rate, per second, at which all lines are settled within their windows. Compare it with "
            "*Results*.",
            gauges("max", "batchwright_model_required_results_per_second", "model", _M),
            "reqps",
        ),
        Panel(
            "Required requests in flight",
            "Required results times the seconds in flight that each result took in the last half hour.",
            [
                PanelQuery(
                    f"max by (model) (batchwright_model_required_results_per_second{_M}) * "
                    "(sum by (model) "
                    f"(rate(batchwright_model_request_execution_duration_seconds_sum{_M}[30m])) / "
                    f"(sum by (model) (rate(batchwright_request_results_total{_M}[30m])) > 0))",
                    "{{model}}",
                )
            ],
        ),
    ],
)

_BACKEND = PanelRow(
    "Backend",
    [
        Panel(
            "Request duration",
            "Duration of one request to a backend, with any outcome.",
            quantiles("batchwright_model_request_execution_duration_seconds", "model", _M),
            "s",
        ),
        Panel(
            "In flight",
            "Compared with the model's limit, which falls after rejections and rises after successes.",
            [
                *gauges("sum", "batchwright_model_inflight_requests", "model", _M),
                PanelQuery(
                    f"sum by (model) (batchwright_model_max_inflight_concurrency{_M})", "{{model}} limit"
                ),
            ],
        ),
        Panel(
            "Circuit",
            "Fraction of workers, and of API processes with interactive calls, whose circuit breakers for "
            "the model are open.",
            gauges("avg", "batchwright_model_circuit_open", "model", _M),
            "percentunit",
            most=1,
        ),
        Panel(
            "Circuits by backend",
            "Fraction of workers, and of API processes with interactive calls, whose circuit breaker for "
            "the model at this backend is open.",
            gauges("avg", "batchwright_backend_circuit_open", "model, backend", _M),
            "percentunit",
            most=1,
        ),
        Panel(
            "Requests",
            "Per second, by backend and HTTP status; `none` if there was no response.",
            rates("batchwright_requests_total", "model, backend, status", _M),
            "reqps",
        ),
        Panel(
            "Errors",
            "Requests per second without a usable response, by type.",
            rates("batchwright_errors_total", "model, error_type", _M),
            "reqps",
        ),
        Panel(
            "Fallbacks",
            "Lines per second sent to a fallback model because no backend of their own model was available.",
            rates("batchwright_fallbacks_total", "from_model, to_model", '{from_model=~"$model"}'),
            "reqps",
        ),
        Panel(
            "Retries",
            "Requests per second that will be retried, by cause.",
            rates("batchwright_request_retries_total", "model, category", _M),
            "reqps",
        ),
        Panel(
            "Deferrals",
            "Slices per minute that released their slot because they could send nothing, by cause.",
            rates("batchwright_model_group_deferrals_total", "model, reason", _M, every_minute=True),
        ),
        Panel(
            "Tokens",
            "Per second, as the backend reports them: prompt tokens, then generated tokens.",
            rates("batchwright_batch_request_prompt_tokens_total", "model", _M)
            + rates("batchwright_batch_request_generation_tokens_total", "model", _M),
        ),
    ],
)

_QUEUE = PanelRow(
    "Queue",
    [
        Panel(
            "Waiting slices",
            "In the model's task queue. Models that share the rate over all models wait in `dispatch`.",
            gauges("max", "batchwright_queue_depth", "queue", _M),
        ),
        Panel(
            "Oldest waiting slice",
            "Time that it has waited.",
            gauges("max", "batchwright_queue_oldest_age_seconds", "queue", _M),
            "s",
        ),
        Panel(
            "Pollers",
            "Workers that polled the model's queue within the last minutes.",
            gauges("max", "batchwright_queue_pollers", "queue", _M),
        ),
    ],
)

_JOBS = PanelRow(
    "Backend jobs",
    [
        Panel(
            "Running jobs",
            "Unfinished jobs of models of kind `poll` or `callback`.",
            gauges("sum", "batchwright_backend_jobs_running", "model, kind", _M),
        ),
        Panel(
            "Jobs ended",
            "Per minute, by result: `lost` jobs are unknown to their backend, `overdue` ones did not end in "
            "time, `given_up` ones ended with their batch.",
            rates("batchwright_backend_jobs_ended_total", "model, result", _M, every_minute=True),
        ),
        Panel(
            "Job duration",
            "From the submit until a worker received the end.",
            quantiles("batchwright_backend_job_duration_seconds", "model", _M),
            "s",
        ),
        Panel(
            "Jobs submitted",
            "Per minute, accepted by the backend.",
            rates("batchwright_backend_jobs_submitted_total", "model, kind", _M, every_minute=True),
        ),
        Panel(
            "Job polls",
            "Per second: `ok`, or `inconclusive` if the response was unusable.",
            rates("batchwright_backend_jobs_polled_total", "model, result", _M),
            "reqps",
        ),
        Panel(
            "Callbacks",
            "Per minute, for all models: accepted, repeated, or refused, with the reason.",
            rates("batchwright_callbacks_total", "result", every_minute=True),
        ),
    ],
)

MODEL = Dashboard(
    "batchwright-model",
    "Batchwright / Model",
    "Progress of a model's lines, and what delays them.",
    [_PROGRESS, _BACKEND, _JOBS, _QUEUE],
    [BoardVariable("model", "batchwright_request_results_total")],
)

_TENANTS = PanelRow(
    "Tenants",
    [
        Panel(
            "Live batches",
            "Batches that have not ended.",
            gauges("max", "batchwright_tenant_jobs", "tenant", _T),
            stacked=True,
        ),
        Panel(
            "Lines left",
            "Lines of live batches without a result.",
            gauges("max", "batchwright_tenant_lines_left", "tenant", _T),
            stacked=True,
        ),
        Panel(
            "Deadline slack",
            "Time to the deadline minus the estimated time for the remaining lines; the smallest value.",
            gauges("min", "batchwright_deadline_slack_seconds", "tenant", _T),
            "s",
            least=None,
        ),
        Panel(
            "Results",
            "Per second, successes and errors.",
            rates("batchwright_tenant_request_results_total", "tenant, result", _T),
            "reqps",
            width=12,
        ),
        Panel(
            "Share",
            "Fraction of all results. Tenants with waiting work share by their weights.",
            [
                PanelQuery(
                    f"sum by (tenant) (rate(batchwright_tenant_request_results_total{_T}[{RATE}])) / "
                    f"scalar(sum(rate(batchwright_tenant_request_results_total[{RATE}])) > 0)",
                    "{{tenant}}",
                )
            ],
            "percentunit",
            width=12,
            stacked=True,
            most=1,
        ),
    ],
)

_BUDGETS = PanelRow(
    "Daily budgets",
    [
        Panel(
            "Budget",
            "Part of today's tokens or cost that is used, of tenants with a budget. At 1 their lines are "
            "refused.",
            [
                PanelQuery(
                    f"max by (tenant, quota) (batchwright_tenant_budget_used{_T}) / "
                    f"(max by (tenant, quota) (batchwright_tenant_budget{_T}) > 0)",
                    "{{tenant}} {{quota}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Budgets of organizations",
            "The same of all tenants of an organization together. At 1 the lines of each are refused.",
            [
                PanelQuery(
                    "max by (organization, quota) (batchwright_organization_budget_used) / "
                    "(max by (organization, quota) (batchwright_organization_budget) > 0)",
                    "{{organization}} {{quota}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Lines refused",
            "A minute, because a budget of the tenant, its organization, a team, a user or an API key is "
            "used up.",
            rates("batchwright_quota_refusals_total", "tenant", _BUDGET, every_minute=True),
        ),
        Panel(
            "Short or used up",
            "Budgets of tenants, organizations, teams, users and API keys that have less than a tenth left, "
            "and those that have nothing until 00:00 UTC.",
            [
                PanelQuery("max by (of, quota) (batchwright_budgets_short)", "{{of}} {{quota}}: short"),
                PanelQuery("max by (of, quota) (batchwright_budgets_exhausted)", "{{of}} {{quota}}: used up"),
            ],
        ),
    ],
)

TENANT = Dashboard(
    "batchwright-tenant",
    "Batchwright / Tenant",
    "Who uses what. Tenants beyond BATCHWRIGHT_METRICS_TENANTS are together in `other`.",
    [_TENANTS, _BUDGETS],
    [BoardVariable("tenant", "batchwright_tenant_request_results_total")],
)
