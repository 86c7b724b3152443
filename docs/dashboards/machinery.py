"""The workers, and the storage under them."""

from docs.dashboards.panels import RATE, Board, Panel, Query, Row, Variable, gauges, quantiles, rates

_I = '{instance=~"$instance"}'


def _part(what: str, of: str) -> list[Query]:
    """A worker's gauge as a part of its limit; other processes have a limit of 0."""
    return [Query(f"batchwright_{what}{_I} / (batchwright_{of}{_I} > 0)", "{{instance}}")]


_LOAD = Row(
    "Load",
    [
        Panel(
            "In flight",
            "Part of the worker's limit on requests at once.",
            _part("processor_inflight_requests", "processor_max_inflight_concurrency"),
            "percentunit",
            most=1,
        ),
        Panel(
            "Slots",
            "Ingestions, finalizations and slices at once, part of what the worker may have.",
            _part("active_workers", "total_workers"),
            "percentunit",
            most=1,
        ),
        Panel(
            "Held",
            "Bodies and answers in memory, part of BATCHWRIGHT_BYTE_BUDGET.",
            _part("processor_held_bytes", "processor_max_held_bytes"),
            "percentunit",
        ),
        Panel("Memory", "Resident.", [Query(f"process_resident_memory_bytes{_I}", "{{instance}}")], "bytes"),
        Panel(
            "CPU",
            "Cores. A worker's event loop has one: near 1 it is the bottleneck.",
            [Query(f"rate(process_cpu_seconds_total{_I}[{RATE}])", "{{instance}}")],
        ),
        Panel(
            "Open files",
            "Connections to backends are among them.",
            [Query(f"process_open_fds{_I}", "{{instance}}")],
        ),
    ],
)

_STEPS = Row(
    "Steps",
    [
        Panel(
            "Failed attempts",
            "A minute. Temporal tries them again; turns and deferrals are no failures.",
            rates("batchwright_step_failures_total", "step, type", _I, every_minute=True),
        ),
        Panel(
            "Taken over",
            "Steps a minute whose earlier attempt was lost with its worker.",
            rates("batchwright_batch_startup_recovery_total", "status, action", _I, every_minute=True),
        ),
        Panel(
            "Time of a step",
            "95 of 100: ingestion by lines of the batch, finalization.",
            quantiles("batchwright_plan_build_duration_seconds", "size_bucket", _I, [0.95])
            + quantiles("batchwright_finalize_latency_seconds", "", _I, [0.95]),
            "s",
        ),
    ],
)

_TEMPORAL = Row(
    "Temporal SDK",
    [
        Panel(
            "Wait before a step",
            "From schedule to start, 95 of 100, by task queue.",
            quantiles("temporal_activity_schedule_to_start_latency_seconds", "task_queue", _I, [0.95]),
            "s",
        ),
        Panel(
            "Workflow tasks",
            "Time to execute one, 95 of 100.",
            quantiles("temporal_workflow_task_execution_latency_seconds", "workflow_type", _I, [0.95]),
            "s",
        ),
        Panel(
            "Failed workflow tasks",
            "A minute. Any is a reason to look: the batch stands still until its history replays.",
            rates(
                "temporal_workflow_task_execution_failed_total",
                "workflow_type, failure_reason",
                _I,
                every_minute=True,
            ),
        ),
        Panel(
            "Failed calls",
            "Calls to the server a second, by operation. NOT_FOUND is part of ordinary life.",
            rates("temporal_request_failure_total", "operation, status_code", _I),
            "reqps",
        ),
        Panel("Pollers", "By kind.", gauges("sum", "temporal_num_pollers", "poller_type", _I)),
        Panel(
            "Cached workflows",
            "Those whose history need not be replayed for the next task.",
            gauges("sum", "temporal_sticky_cache_size", "instance", _I),
        ),
    ],
)

WORKER = Board(
    "batchwright-worker",
    "Batchwright / Worker",
    "How full the workers are, and what fails in them.",
    [_LOAD, _STEPS, _TEMPORAL],
    [Variable("instance", "batchwright_total_workers")],
)

_BY = "component, operation"
_OPERATIONS = Row(
    "Operations",
    [
        Panel(
            "Operations",
            "A second, that succeeded.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="success"}'),
            "ops",
        ),
        Panel(
            "Tried again",
            "Tries a second that were repeated: a storage that throttles or is slow to answer.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="retry"}'),
            "ops",
        ),
        Panel(
            "Given up",
            "Operations a second that failed after all their retries.",
            rates("batchwright_file_storage_operations_total", _BY, '{status="exhausted"}'),
            "ops",
        ),
        Panel(
            "Time of an operation",
            "With its retries, 95 of 100.",
            quantiles("batchwright_file_storage_operation_duration_seconds", "operation", "", [0.95]),
            "s",
            width=12,
        ),
        Panel(
            "Bytes",
            "A second, to and from the storage.",
            rates("batchwright_file_storage_bytes_total", _BY),
            "Bps",
            width=12,
        ),
    ],
)

_WAITING = Row(
    "What waits for it",
    [
        Panel(
            "Time of a flush",
            "Results are settled once their segment is stored; a slice stores one every 2 s.",
            quantiles("batchwright_segment_flush_duration_seconds"),
            "s",
            width=12,
        ),
        Panel(
            "Finalizations tried again",
            "A minute, by how the retry ended.",
            rates("batchwright_finalization_retries_total", "result", every_minute=True),
            width=12,
        ),
    ],
)

_SUCCESS = "batchwright_retention_last_success_timestamp_seconds"
_RETENTION = Row(
    "Retention",
    [
        Panel(
            "Deleted",
            "A minute, by kind: objects and rows.",
            rates("batchwright_retention_deleted_total", "kind", every_minute=True),
        ),
        Panel(
            "Bytes deleted",
            "A second, of what lay in the storage.",
            rates("batchwright_retention_deleted_bytes_total", "kind"),
            "Bps",
        ),
        Panel(
            "Since the last success",
            "Of a kind: an hour or so, for unfinished, orphans and lost a day.",
            [
                Query(
                    "time() - max by (kind) (batchwright_retention_last_success_timestamp_seconds)",
                    "{{kind}}",
                )
            ],
            "s",
        ),
        Panel(
            "Failures",
            "A minute: attempts that failed, and single things that cannot be deleted.",
            rates("batchwright_retention_failures_total", "kind", every_minute=True),
        ),
    ],
)

_AUDIT = Row(
    "Audit",
    [
        Panel(
            "Differences",
            "Of the last audit, by kind: what is still there should be 0.",
            [
                Query(
                    'max by (kind) (batchwright_audit_differences{state="left"})',
                    "{{kind}}",
                )
            ],
            width=12,
        ),
        Panel(
            "Since the last audit",
            "A day or so.",
            [Query("time() - max(batchwright_audit_last_timestamp_seconds)", "audit")],
            "s",
            width=12,
        ),
    ],
)

STORAGE = Board(
    "batchwright-storage",
    "Batchwright / Storage",
    "Whether objects are stored and read, how fast, what is deleted, and whether all fits together.",
    [_OPERATIONS, _WAITING, _RETENTION, _AUDIT],
)
