"""Dashboards *Worker* and *Storage*."""

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

_I = '{instance=~"$instance"}'


def _part(what: str, of: str) -> list[PanelQuery]:
    """Return a query for the fraction of a limit that a worker uses, as a list of one item.

    `what` is the gauge of the used amount, and `of` is the gauge of the limit. Limits of 0 are left out.
    """
    return [PanelQuery(f"batchwright_{what}{_I} / (batchwright_{of}{_I} > 0)", "{{instance}}")]


_LOAD = PanelRow(
    "Load",
    [
        Panel(
            "In flight",
            "Requests in flight as a fraction of the worker's limit.",
            _part("processor_inflight_requests", "processor_max_inflight_concurrency"),
            "percentunit",
            most=1,
        ),
        Panel(
            "Slots",
            "Running ingestions, finalizations and slices as a fraction of the worker's slots.",
            _part("active_workers", "total_workers"),
            "percentunit",
            most=1,
        ),
        Panel(
            "Body memory",
            "Request and response bodies in memory as a fraction of BATCHWRIGHT_BYTE_BUDGET.",
            _part("processor_held_bytes", "processor_max_held_bytes"),
            "percentunit",
        ),
        Panel(
            "Memory",
            "Resident memory.",
            [PanelQuery(f"process_resident_memory_bytes{_I}", "{{instance}}")],
            "bytes",
        ),
        Panel(
            "CPU",
            "Cores. A worker's event loop uses one core: near 1 it is the bottleneck.",
            [PanelQuery(f"rate(process_cpu_seconds_total{_I}[{RATE}])", "{{instance}}")],
        ),
        Panel(
            "Open files",
            "Includes connections to backends.",
            [PanelQuery(f"process_open_fds{_I}", "{{instance}}")],
        ),
    ],
)

_STEPS = PanelRow(
    "Activities",
    [
        Panel(
            "Failed attempts",
            "Per minute. Temporal retries them; ends of turns and deferrals are not failures.",
            rates("batchwright_step_failures_total", "step, type", _I, every_minute=True),
        ),
        Panel(
            "Taken over",
            "Activities per minute whose previous attempt was lost with its worker.",
            rates("batchwright_batch_startup_recovery_total", "status, action", _I, every_minute=True),
        ),
        Panel(
            "Activity duration",
            "95th percentile of ingestion, by number of lines, and of finalization.",
            quantiles("batchwright_plan_build_duration_seconds", "size_bucket", _I, [0.95])
            + quantiles("batchwright_finalize_latency_seconds", "", _I, [0.95]),
            "s",
        ),
    ],
)

_TEMPORAL = PanelRow(
    "Temporal SDK",
    [
        Panel(
            "Wait before an activity",
            "From schedule to start, 95th percentile, by task queue.",
            quantiles("temporal_activity_schedule_to_start_latency_seconds", "task_queue", _I, [0.95]),
            "s",
        ),
        Panel(
            "Workflow tasks",
            "Execution time, 95th percentile.",
            quantiles("temporal_workflow_task_execution_latency_seconds", "workflow_type", _I, [0.95]),
            "s",
        ),
        Panel(
            "Failed workflow tasks",
            "Per minute. Investigate each one: its batch makes no progress until its history replays.",
            rates(
                "temporal_workflow_task_execution_failed_total",
                "workflow_type, failure_reason",
                _I,
                every_minute=True,
            ),
        ),
        Panel(
            "Failed calls",
            "Failed calls to the server per second, by operation. NOT_FOUND is normal.",
            rates("temporal_request_failure_total", "operation, status_code", _I),
            "reqps",
        ),
        Panel("Pollers", "By kind.", gauges("sum", "temporal_num_pollers", "poller_type", _I)),
        Panel(
            "Cached workflows",
            "Workflows that run their next task without a replay.",
            gauges("sum", "temporal_sticky_cache_size", "instance", _I),
        ),
    ],
)

WORKER = Dashboard(
    "batchwright-worker",
    "Batchwright / Worker",
    "Load and failures of workers.",
    [_LOAD, _STEPS, _TEMPORAL],
    [BoardVariable("instance", "batchwright_total_workers")],
)

_BY = "component, operation"
_OPERATIONS = PanelRow(
    "Operations",
    [
        Panel(
            "Operations",
            "Successful operations per second.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="success"}'),
            "ops",
        ),
        Panel(
            "Retries",
            "Retries per second, because the storage throttles or answers slowly.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="retry"}'),
            "ops",
        ),
        Panel(
            "Given up",
            "Operations per second that failed after all retries.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="exhausted"}'),
            "ops",
        ),
        Panel(
            "Operation duration",
            "With retries, 95th percentile.",
            quantiles("batchwright_file_storage_operation_duration_seconds", "operation", "", [0.95]),
            "s",
            width=12,
        ),
        Panel(
            "Bytes",
            "Per second, to and from the storage.",
            rates("batchwright_file_storage_bytes_total", _BY),
            "Bps",
            width=12,
        ),
    ],
)

_WAITING = PanelRow(
    "Work that waits for storage",
    [
        Panel(
            "Flush duration",
            "Lines are settled once their segment is stored. A slice stores a segment every 2 s.",
            quantiles("batchwright_segment_flush_duration_seconds"),
            "s",
            width=12,
        ),
        Panel(
            "Finalization retries",
            "Per minute, by result of the retry.",
            rates("batchwright_finalization_retries_total", "result", every_minute=True),
            width=12,
        ),
    ],
)

_RETENTION = PanelRow(
    "Retention",
    [
        Panel(
            "Deleted",
            "Objects and rows per minute, by kind.",
            rates("batchwright_retention_deleted_total", "kind", every_minute=True),
        ),
        Panel(
            "Bytes deleted",
            "Bytes of stored objects deleted per second.",
            rates("batchwright_retention_deleted_bytes_total", "kind"),
            "Bps",
        ),
        Panel(
            "Since the last success",
            "By kind. Normal: about an hour; for unfinished, orphans and lost about a day.",
            [
                PanelQuery(
                    "time() - max by (kind) (batchwright_retention_last_success_timestamp_seconds)",
                    "{{kind}}",
                )
            ],
            "s",
        ),
        Panel(
            "Failures",
            "Per minute: failed attempts, and objects or rows that cannot be deleted.",
            rates("batchwright_retention_failures_total", "kind", every_minute=True),
        ),
    ],
)

_CONSISTENCY = PanelRow(
    "Consistency",
    [
        Panel(
            "Differences",
            "Unrepaired differences of the last consistency check, by kind. Should be 0.",
            [
                PanelQuery(
                    'max by (kind) (batchwright_consistency_differences{state="left"})',
                    "{{kind}}",
                )
            ],
            width=12,
        ),
        Panel(
            "Since the last consistency check",
            "Normal: about a day.",
            [
                PanelQuery(
                    "time() - max(batchwright_consistency_check_last_timestamp_seconds)", "consistency check"
                )
            ],
            "s",
            width=12,
        ),
    ],
)

STORAGE = Dashboard(
    "batchwright-storage",
    "Batchwright / Storage",
    "Object storage: operations, their duration, deletions, and differences found by consistency checks.",
    [_OPERATIONS, _WAITING, _RETENTION, _CONSISTENCY],
)
