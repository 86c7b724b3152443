"""What concerns one model, or one tenant."""

from docs.dashboards.panels import RATE, Board, Panel, Query, Row, Variable, gauges, quantiles, rates

_M, _T = '{model=~"$model"}', '{tenant=~"$tenant"}'
_BUDGET = '{quota="tokens_per_day",tenant=~"$tenant"}'

_PROGRESS = Row(
    "Progress",
    [
        Panel(
            "Lines left", "Of all live batches.", gauges("max", "batchwright_model_lines_left", "model", _M)
        ),
        Panel(
            "Results",
            "A second, errors apart.",
            rates("batchwright_request_results_total", "model, result", _M),
            "reqps",
        ),
        Panel(
            "Time left",
            "Lines left at the speed of the last minutes. No point: nothing settles.",
            [
                Query(
                    f"max by (model) (batchwright_model_lines_left{_M}) / "
                    f"(sum by (model) (rate(batchwright_request_results_total{_M}[5m])) > 0)",
                    "{{model}}",
                )
            ],
            "s",
        ),
    ],
)

_BACKEND = Row(
    "Backend",
    [
        Panel(
            "Time of a request",
            "One request to the backend, whatever came back.",
            quantiles("batchwright_model_request_execution_duration_seconds", "model", _M),
            "s",
        ),
        Panel(
            "In flight",
            "Against the model's limit, which refusals halve and answers raise again.",
            [
                *gauges("sum", "batchwright_model_inflight_requests", "model", _M),
                Query(f"sum by (model) (batchwright_model_max_inflight_concurrency{_M})", "{{model}} limit"),
            ],
        ),
        Panel(
            "Circuit",
            "The part of the workers for which the backend takes nothing.",
            gauges("avg", "batchwright_model_circuit_open", "model", _M),
            "percentunit",
            most=1,
        ),
        Panel(
            "Asked again",
            "Requests a second that will be asked again, by cause.",
            rates("batchwright_request_retries_total", "model, category", _M),
            "reqps",
        ),
        Panel(
            "Put off",
            "Slices a minute that gave their slot back because they could send nothing.",
            rates("batchwright_model_group_deferrals_total", "model, reason", _M, every_minute=True),
        ),
        Panel(
            "Tokens",
            "A second, as the backend reports them: prompts first.",
            rates("batchwright_batch_request_prompt_tokens_total", "model", _M)
            + rates("batchwright_batch_request_generation_tokens_total", "model", _M),
        ),
    ],
)

_QUEUE = Row(
    "Queue",
    [
        Panel(
            "Waiting slices",
            "In the model's task queue. Models that share the rate over all models are in `dispatch`.",
            gauges("max", "batchwright_queue_depth", "queue", _M),
        ),
        Panel(
            "Oldest waiting slice",
            "How long it has waited.",
            gauges("max", "batchwright_queue_oldest_age_seconds", "queue", _M),
            "s",
        ),
        Panel(
            "Pollers",
            "Workers that asked for the model's slices within the last minutes.",
            gauges("max", "batchwright_queue_pollers", "queue", _M),
        ),
    ],
)

_JOBS = Row(
    "Jobs of backends",
    [
        Panel(
            "Running jobs",
            "That workers wait for, of models of kind `poll` or `callback`.",
            gauges("sum", "batchwright_backend_jobs_running", "model, kind", _M),
        ),
        Panel(
            "Jobs that ended",
            "A minute, by how: `lost` is unknown to its backend, `overdue` did not end in time, `given_up` "
            "ended with its batch.",
            rates("batchwright_backend_jobs_ended_total", "model, result", _M, every_minute=True),
        ),
        Panel(
            "Time of a job",
            "From its submit until its end was heard of.",
            quantiles("batchwright_backend_job_duration_seconds", "model", _M),
            "s",
        ),
        Panel(
            "Submitted",
            "Jobs a minute that the backend took.",
            rates("batchwright_backend_jobs_submitted_total", "model, kind", _M, every_minute=True),
        ),
        Panel(
            "Asked after",
            "A second: it told how the job is, or nothing usable came (`unclear`).",
            rates("batchwright_backend_jobs_polled_total", "model, result", _M),
            "reqps",
        ),
        Panel(
            "Calls of backends",
            "A minute, of all models: accepted, repeated, or refused for what stands there.",
            rates("batchwright_callbacks_total", "result", every_minute=True),
        ),
    ],
)

MODEL = Board(
    "batchwright-model",
    "Batchwright / Model",
    "How fast a model's lines settle, and what holds them up.",
    [_PROGRESS, _BACKEND, _JOBS, _QUEUE],
    [Variable("model", "batchwright_request_results_total")],
)

_TENANTS = Row(
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
            "Time to the deadline less the estimated time for what is left, of the batch that has least.",
            gauges("min", "batchwright_deadline_slack_seconds", "tenant", _T),
            "s",
            least=None,
        ),
        Panel(
            "Results",
            "A second, errors apart.",
            rates("batchwright_tenant_request_results_total", "tenant, result", _T),
            "reqps",
            width=12,
        ),
        Panel(
            "Share",
            "Of all results. Tenants that all have work waiting share by their weights.",
            [
                Query(
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

_BUDGETS = Row(
    "Budgets of tokens",
    [
        Panel(
            "Budget",
            "Part of today's tokens that is used, of tenants with a budget. At 1 their lines are refused.",
            [
                Query(
                    f"max by (tenant) (batchwright_tenant_tokens_used{_T}) / "
                    f"(max by (tenant) (batchwright_tenant_token_budget{_T}) > 0)",
                    "{{tenant}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Budgets of organizations",
            "The same of all tenants of an organization together. At 1 the lines of each are refused.",
            [
                Query(
                    "max by (organization) (batchwright_organization_tokens_used) / "
                    "(max by (organization) (batchwright_organization_token_budget) > 0)",
                    "{{organization}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Lines refused",
            "A minute, because a budget of the tenant, its organization, a user or an API key is used up.",
            rates("batchwright_quota_refusals_total", "tenant", _BUDGET, every_minute=True),
        ),
        Panel(
            "Short or used up",
            "Budgets of tenants, organizations, users and API keys that have less than a tenth left, and "
            "those that have nothing until 00:00 UTC.",
            [
                Query("max by (of) (batchwright_token_budgets_short)", "{{of}}: short"),
                Query("max by (of) (batchwright_token_budgets_exhausted)", "{{of}}: used up"),
            ],
        ),
    ],
)

TENANT = Board(
    "batchwright-tenant",
    "Batchwright / Tenant",
    "Who uses what. Tenants beyond BATCHWRIGHT_METRICS_TENANTS are together in `other`.",
    [_TENANTS, _BUDGETS],
    [Variable("tenant", "batchwright_tenant_request_results_total")],
)
