"""Divides the samples of a worker's call stacks among the stages of a batch."""

from collections import Counter

from bench.call_stacks import Stacks

_WHOLE_STACK = {
    "ingestion": ("activities/ingestion/",),
    "finalization": ("activities/finalization/", "activities/completion.py"),
    "workflows": ("batchwright/workflows/", "temporalio/worker/_workflow", "workflow_sandbox"),
    "activities and heartbeats: Temporal's SDK in Python": ("execution/lease.py", "heartbeat.py"),
    "database and background tasks": (
        "batchwright/database/",
        "asyncpg/",
        "batchwright/worker/",
        "services/",
    ),
}
_INNERMOST = {
    "HTTP exchange": ("inference/transport/", "httptools"),
    "choice of a backend, response, learned limit": ("inference/", "rules/dispatch/", "rules/backends/"),
    "metrics, logs and traces": ("batchwright/telemetry/", "prometheus"),
    "output lines and segments": ("result_writer.py", "rules/results/", "contracts/"),
    "storage": ("batchwright/storage/",),
    "input lines": ("line_queue.py", "due_lines.py", "stored_results.py", "rules/input/", "rules/planning/"),
    "dispatch of lines": ("activities/execution/", "activities/services/"),
    "activities and heartbeats: Temporal's SDK in Python": ("temporalio/", "worker/interceptors.py"),
}
EVENT_LOOP = "event loop: sockets and callbacks"
STAGES = (*dict.fromkeys((*_INNERMOST, *_WHOLE_STACK)), EVENT_LOOP)


def shares(stacks: Stacks) -> dict[str, float]:
    """Return the share of the samples in each stage, from 0 to 1. The shares add up to 1."""
    found = Counter[str]()
    for stack, count in stacks.items():
        found[stage_of(stack)] += count
    total = found.total() or 1
    return {stage: found[stage] / total for stage in STAGES}


def stage_of(stack: tuple[str, ...]) -> str:
    """Return the stage to which a call stack belongs.

    Ingestion, finalization and the like include everything that they call. Any other stack belongs to the
    stage of its innermost known function.

    Args:
        stack: functions with their files, the outermost first.
    """
    text = ";".join(stack)
    for stage, files in _WHOLE_STACK.items():
        if any(file in text for file in files):
            return stage
    for frame in reversed(stack):
        for stage, files in _INNERMOST.items():
            if any(file in frame for file in files):
                return stage
    return EVENT_LOOP
