"""Computes which fraction of a worker's time each stage takes, from samples of the worker's call stacks.

A stage is a kind of work, such as ingestion (reading the input) or storage. Each sample belongs to one stage.
"""

from collections import Counter

from bench.call_stacks import Stacks

_SDK = "activities and heartbeats: Temporal's SDK in Python"
_OTHER = "database and background tasks"
_WHOLE_STACK = {
    "ingestion": ("activities/ingestion/",),
    "finalization": ("activities/finalization/", "activities/stored_results/", "activities/batch_end/"),
    "workflows": ("batchwright/workflows/", "temporalio/worker/_workflow"),
    _OTHER: ("batchwright/database/", "asyncpg/"),
}
_INNERMOST = {
    "HTTP exchange": ("inference/transport/", "httptools"),
    "choice of a backend, response, learned limit": (
        "inference/",
        "rules/dispatch/",
        "rules/limits/",
        "rules/backends/",
    ),
    "metrics, logs and traces": ("batchwright/telemetry/", "prometheus"),
    "output lines and segments": ("segment_buffer.py", "rules/results/", "batchwright/contracts/"),
    "storage": ("batchwright/storage/",),
    "input lines": ("line_queue.py", "resumed_slice.py", "rules/input/", "rules/planning/"),
    _SDK: (
        "temporalio/",
        "worker/interceptors/activity_metrics.py",
        "worker/interceptors/failure_waiting_reasons.py",
        "execution/slice_state/lease.py",
        "activities/heartbeat.py",
    ),
    "dispatch of lines": ("activities/execution/",),
    _OTHER: ("batchwright/worker/", "activities/services/"),
}
_MAIN = ("batchwright/worker/main.py", "batchwright/worker/__main__.py", "batchwright/process_exit.py")
EVENT_LOOP = "event loop: sockets and callbacks"
STAGES = (*dict.fromkeys((*_INNERMOST, *_WHOLE_STACK)), EVENT_LOOP)


def shares(stacks: Stacks) -> dict[str, float]:
    """Return the fraction of the samples that belongs to each stage, from 0 to 1, by the name of the stage.

    A stage is a kind of work, such as ingestion. The fractions add up to 1.

    Args:
        stacks: number of samples for each call stack.
    """
    found = Counter[str]()
    for stack, count in stacks.items():
        found[stage_of(stack)] += count
    total = found.total() or 1
    return {stage: found[stage] / total for stage in STAGES}


def stage_of(stack: tuple[str, ...]) -> str:
    """Return the name of the stage (kind of work, such as ingestion) to which a call stack belongs.

    - If a function in the stack belongs to ingestion, finalization, workflows or the database, the result is
      the first of these four stages that has such a function.
    - Otherwise, the result is the stage of the innermost function that belongs to a stage.
    - If no function belongs to a stage, the result is the event loop.

    The main function of the process is ignored, because every stack has it.

    Args:
        stack: functions with their files, the outermost first.
    """
    text = ";".join(stack)
    for stage, files in _WHOLE_STACK.items():
        if any(file in text for file in files):
            return stage
    for frame in reversed(stack):
        for stage, files in _INNERMOST.items():
            if any(file in frame for file in files) and not any(file in frame for file in _MAIN):
                return stage
    return EVENT_LOOP
