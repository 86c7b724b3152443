"""Section of the benchmark: how exact the reported progress of a batch and the durations of requests are.

The API reports the progress, and a worker measures the durations. Both are compared with the record of the
simulated backend. The section also measures the CPU time for event streams.
"""

import re
import time
from statistics import mean
from typing import NamedTuple

import httpx

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.client import Client
from bench import batches, event_listeners
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, Simulator, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LATENCY_MS = 64, 100
_SECONDS, _POLL_SECONDS = 35.0, 0.05
_FOLLOWED_LINES = 20_000  # about half a minute
_DURATIONS = re.compile(r"^batchwright_request_duration_seconds_(sum|count)\{.*\} (\S+)$", re.MULTILINE)


class ProgressSample(NamedTuple):
    """Numbers of lines at one time: answered by the simulator, and reported as done by the API.

    `at` is the time in seconds of a monotonic clock.
    """

    at: float
    answered: int
    reported: int


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(5_000, 1_500)
    path = options.folder / "progress.jsonl"
    write_input(path, count)
    found: list[float] = []
    beyond_ms: list[float] = []
    with (
        simulator("--latency-ms", str(_LATENCY_MS), entries=True) as backend,
        running_stack(options.folder / "progress", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            backend.reset()
            before = _durations(stack)
            found.append(oldest(_samples(client, backend, file_id)))
            beyond_ms.append(1000 * (_mean_duration(stack, before) - _backend_mean_duration(backend)))
            options.report(f"round {number}: at most {found[-1]:.1f} s old, {beyond_ms[-1]:.1f} ms longer")
        write_input(path, _FOLLOWED_LINES)
        followed = event_listeners.measure(stack, client, batches.upload(client, path), options)
    return [
        Figure("progress.age_s", "age of the counts at their oldest", found, "s", Target(5.0)),
        Figure(
            "progress.duration_ms",
            "mean duration of a request in /metrics, longer than the backend's own",
            beyond_ms,
            "ms",
            Target(5.0),
        ),
        followed,
    ]


def _durations(stack: RunningStack) -> dict[str, float]:
    """Return the sum and the number of all request durations that the worker has measured.

    The sum is in seconds and has the key `sum`; the number has the key `count`.
    """
    wait_until_quiet(stack)
    text = httpx.get(stack.metrics[1], trust_env=False).raise_for_status().text
    return {kind: float(number) for kind, number in _DURATIONS.findall(text)}


def _mean_duration(stack: RunningStack, before: dict[str, float]) -> float:
    now = _durations(stack)
    count = now["count"] - before.get("count", 0)
    return (now["sum"] - before.get("sum", 0)) / count


def _backend_mean_duration(backend: Simulator) -> float:
    """Return the mean time in seconds from the arrival of a request to the end of its response."""
    entries = backend.ledger(entries=True).entries
    return mean(one.last_completed_at - one.first_request_at for one in entries if one.last_completed_at)


def _samples(client: Client, backend: Simulator, file_id: str) -> list[ProgressSample]:
    batch = batches.create(client, file_id)
    samples: list[ProgressSample] = []
    while not batch.status.is_terminal:
        answered = backend.ledger().completed
        at = time.monotonic()
        batch = client.batch(batch.id)
        samples.append(ProgressSample(at, answered, _done(batch)))
        time.sleep(_POLL_SECONDS)
    return samples


def _done(batch: BatchObject) -> int:
    return batch.request_counts.completed + batch.request_counts.failed


def oldest(samples: list[ProgressSample]) -> float:
    """Return the greatest delay of the reported progress in seconds.

    If a report shows n lines, its delay is the time since the simulator had answered n + 1 lines. If the
    simulator had not yet answered n + 1 lines, the report has no delay.
    """
    worst, reached = 0.0, 0
    for sample in samples:
        # First time at which the simulator had answered more lines than the API reports now.
        while reached < len(samples) and samples[reached].answered <= sample.reported:
            reached += 1
        if reached < len(samples) and samples[reached].at <= sample.at:
            worst = max(worst, sample.at - samples[reached].at)
    return worst


SECTION = Section(
    "progress",
    "Progress as the API tells it",
    "5,000 lines, every answer after 100 ms, 64 in flight; the batch's counts beside what the simulator has "
    "answered, twenty times a second, and the duration of a request, as the worker measures it, beside the "
    "simulator's own. Then 20,000 lines; the CPU time of the API while 200 clients follow "
    "the batch's events, less its time without them.",
    1.2,
    measure,
)
