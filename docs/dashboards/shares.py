"""What concerns one model, or one tenant."""

from docs.dashboards.panels import RATE, Board, Panel, Query, Row, Variable, gauges, quantiles, rates

_M, _T = '{model=~"$model"}', '{tenant=~"$tenant"}'

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

MODEL = Board(
    "batchwright-model",
    "Batchwright / Model",
    "How fast a model's lines settle, and what holds them up.",
    [_PROGRESS, _BACKEND, _QUEUE],
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

TENANT = Board(
    "batchwright-tenant",
    "Batchwright / Tenant",
    "Who uses what. Tenants beyond BATCHWRIGHT_METRICS_TENANTS are together in `other`.",
    [_TENANTS],
    [Variable("tenant", "batchwright_tenant_request_results_total")],
)
