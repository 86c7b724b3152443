"""Section of the benchmark: by how many seconds the progress of a batch in the API is behind the real one."""

import time
from typing import NamedTuple

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.sections import listeners
from bench.stack import Simulator, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LATENCY_MS = 64, 100
_SECONDS, _POLL_SECONDS = 35.0, 0.05
_FOLLOWED_LINES = 20_000  # about half a minute


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
    with (
        simulator("--latency-ms", str(_LATENCY_MS)) as backend,
        running_stack(options.folder / "progress", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            backend.reset()
            found.append(oldest(_samples(client, backend, file_id)))
            options.report(f"round {number}: at most {found[-1]:.1f} s old")
        write_input(path, _FOLLOWED_LINES)
        followed = listeners.measure(stack, client, batches.upload(client, path), options)
    return [Figure("progress.age_s", "age of the counts at their oldest", found, "s", Target(5.0)), followed]


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
    """Return the greatest age of the reported progress in seconds.

    The age is the time for which the API has reported fewer lines than the simulator has answered.
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
    "answered, twenty times a second. Then 20,000 lines; the CPU time of the API while 200 clients follow "
    "the batch's events, less its time without them.",
    1.2,
    measure,
)
