"""Section: batches of one line: one batch at a time, and a hundred batches at the same time."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _AT_ONCE, _ALONE = 64, 100, 5
_SECONDS, _POLL_SECONDS = 60.0, 0.02


def measure(options: SectionOptions) -> list[Figure]:
    path = options.folder / "small.jsonl"
    write_input(path, 1)
    many = options.size(_AT_ONCE, 10)
    alone: list[float] = []
    together: list[float] = []
    with (
        simulator() as backend,
        running_stack(options.folder / "small", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        batches.run_batch(client, file_id, 1)
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            alone += [_one(client, file_id) for _ in range(_ALONE)]
            together.append(_many(stack.api, file_id, many))
            options.report(f"round {number}: {alone[-1]:.2f} s alone, {together[-1]:.1f} s for {many}")
    return [
        Figure("small.alone_s", "one line, created to completed", alone, "s", Target(1.5)),
        Figure("small.many_s", f"{many} at once, until all are completed", together, "s", Target(15.0)),
    ]


def _one(client: Client, file_id: str) -> float:
    started = time.perf_counter()
    batches.wait(client, batches.create(client, file_id).id, 1, _POLL_SECONDS)
    return time.perf_counter() - started


def _many(api: str, file_id: str, count: int) -> float:
    """Create `count` batches from eight threads and wait until all are completed.

    Return the duration in seconds.
    """
    started = time.perf_counter()
    with Client(api) as client, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(partial(batches.create, client), [file_id] * count))
        for batch in made:
            batches.wait(client, batch.id, 1)
    return time.perf_counter() - started


SECTION = Section(
    "small",
    "Small batches",
    "Batches of one line of 1 KB, a simulator that answers at once, one worker.",
    1.2,
    measure,
)
