"""Section of the benchmark: waiting times of new models while one model uses the whole capacity.

It measures how long nine models wait until their first request is sent.
"""

import time

from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import Simulator, running_stack, simulator

_IN_FLIGHT, _LATENCY_MS, _OTHERS = 100, 20, 9
_SECONDS, _POLL_SECONDS, _HOT_LINES_AHEAD = 50.0, 0.01, 200


def measure(options: SectionOptions) -> list[Figure]:
    models = tuple(f"model-{number}" for number in range(_OTHERS + 1))
    hot, small = options.folder / "hot.jsonl", options.folder / "others.jsonl"
    count = options.size(10_000, 2_000)
    write_input(hot, count, models[:1])
    write_input(small, 20 * _OTHERS, models[1:])
    found: list[float] = []
    with (
        simulator("--latency-ms", str(_LATENCY_MS), models=models) as backend,
        running_stack(options.folder / "hot", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        hot_id, small_id = batches.upload(client, hot), batches.upload(client, small)
        for number in options.turns(_SECONDS):
            backend.reset()
            busy = batches.create(client, hot_id)
            while backend.ledger().requests < _HOT_LINES_AHEAD:
                time.sleep(_POLL_SECONDS)
            created = time.time()
            batches.run_batch(client, small_id, 20 * _OTHERS)
            found.append(_last_first(backend, models[1:]) - created)
            options.report(f"round {number}: the last of the nine began after {found[-1]:.2f} s")
            batches.wait(client, busy.id, options.size(10_000, 2_000))
    what = "until each of the nine others' first line has left"
    return [Figure("hot.first_line_s", what, found, "s", Target(1.0))]


def _last_first(backend: Simulator, models: tuple[str, ...]) -> float:
    """Return the latest of the models' first request times, in Unix seconds.

    A model's first request time is the time at which the backend received the model's first request. Models
    without such a time are ignored.
    """
    totals = backend.ledger().models
    firsts = [totals[model].first_request_at for model in models]
    return max(first for first in firsts if first is not None)


SECTION = Section(
    "hot",
    "One hot model and nine others",
    "A batch of 10,000 lines of one model runs with all the requests in flight it may have; a batch over "
    "nine other models is created beside it. From its creation to the first request of the last of the nine.",
    1.2,
    measure,
)
