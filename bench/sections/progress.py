"""How old is what the API tells of a running batch?"""

import time
from typing import NamedTuple

from bench import batches
from bench.inputs import write_input
from bench.options import Options
from bench.results import Figure, Target
from bench.section import Section
from bench.stack import Simulator, running, simulator, wait_until_quiet
from starter.client import Client
from starter.views import Batch

_IN_FLIGHT, _LATENCY_MS = 64, 100
_SECONDS, _POLL_SECONDS = 70.0, 0.05


class Sample(NamedTuple):
    """Lines that the simulator had answered and lines the API told as done, at a time in seconds."""

    at: float
    answered: int
    told: int


def measure(options: Options) -> list[Figure]:
    count = options.size(5_000, 1_500)
    path = options.folder / "progress.jsonl"
    write_input(path, count)
    found: list[float] = []
    with (
        simulator("--latency-ms", str(_LATENCY_MS)) as backend,
        running(options.folder / "progress", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            backend.reset()
            found.append(oldest(_samples(client, backend, file_id)))
            options.say(f"round {number}: at most {found[-1]:.1f} s old")
    return [Figure("progress.age_s", "age of the counts at their oldest", found, "s", Target(5.0))]


def _samples(client: Client, backend: Simulator, file_id: str) -> list[Sample]:
    batch = batches.create(client, file_id)
    samples: list[Sample] = []
    while not batch.status.is_terminal:
        answered = backend.ledger().answered
        at = time.monotonic()
        batch = client.batch(batch.id)
        samples.append(Sample(at, answered, _done(batch)))
        time.sleep(_POLL_SECONDS)
    return samples


def _done(batch: Batch) -> int:
    return batch.request_counts.completed + batch.request_counts.failed


def oldest(samples: list[Sample]) -> float:
    """Seconds: the longest for which the API told fewer lines than had been answered by then."""
    worst, reached = 0.0, 0
    for sample in samples:
        # The first moment at which more had been answered than is told now.
        while reached < len(samples) and samples[reached].answered <= sample.told:
            reached += 1
        if reached < len(samples) and samples[reached].at <= sample.at:
            worst = max(worst, sample.at - samples[reached].at)
    return worst


SECTION = Section(
    "progress",
    "Progress as the API tells it",
    "5,000 lines, every answer after 100 ms, 64 in flight; the batch's counts beside what the simulator has "
    "answered, twenty times a second.",
    1.2,
    measure,
)
