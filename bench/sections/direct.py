"""Section of the benchmark: latency of single requests (calls), while a batch uses the same backend.

The users who send the calls wait for the answers. Some calls are sent directly to a backend, others through
the API.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from batchwright.inference.transport.base import BackendRequest, TargetUrl
from batchwright.inference.transport.connection_pool import PooledTransport
from batchwright.starter.client import Client
from bench import batches
from bench.inputs import MODELS, write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import Simulator, running_stack, simulator, wait_until_quiet

_CALLED, _DIRECT_BATCH, _INTERACTIVE_BATCH = MODELS  # model of the calls, and models of the batches
_SLOTS, _QUEUE = 32, 100
_LATENCY_MS, _JITTER = 400, 0.3
_ARRIVALS = 20.0  # calls per second, which need a quarter of the slots
_SECONDS, _RAMP_SECONDS, _LINES = 16.0, 6.0, 3_000
_SEED = 7
_TIMEOUT_SECONDS, _MAX_ANSWER_BYTES = 60.0, 1024 * 1024
_ALL_SECONDS = 80.0  # one round


class _Way(NamedTuple):
    """A way to send calls to a backend: directly or through the API.

    Attributes:
        name: first part of the keys of the figures (measured values), such as `direct` in `direct.p95`.
        url: address to which the calls are sent.
        backend: backend that answers both the calls and the lines of the batch that runs during the calls.
        model: model of this batch. The calls have another model.
    """

    name: str
    url: str
    backend: Simulator
    model: str

    def completed(self) -> int:
        """Return how many lines of batches the backend has answered since it started."""
        totals = self.backend.ledger().models.get(self.model)
        return 0 if totals is None else totals.completed


class _Measured(NamedTuple):
    """The durations of calls, and how many lines of a batch the backend answered during the measurement.

    The measurement begins with the first call, and ends when all calls are answered.

    Attributes:
        p95: 95th percentile of the durations of the calls, in seconds.
        total: sum of the durations of the calls, in seconds.
        lines: number of lines of the batch that the backend answered during the measurement.
        lasted: duration of the measurement, in seconds.
    """

    p95: float
    total: float
    lines: int
    lasted: float


class _Figures(NamedTuple):
    slowdowns: list[float]
    uses: list[float]


def measure(options: SectionOptions) -> list[Figure]:
    seconds = _SECONDS if not options.quick else 4.0
    figures = {name: _Figures([], []) for name in ("direct", "interactive")}
    with _backend() as first, _backend() as second:
        registry = options.folder / "direct.json"
        registry.write_text(json.dumps({"models": _models(first, second)}))
        settings = {"BATCHWRIGHT_INTERACTIVE_PASSTHROUGH": "true"}
        with (
            running_stack(
                options.folder / "direct", registry, in_flight=2 * _SLOTS, settings=settings
            ) as stack,
            Client(stack.api) as client,
        ):
            ways = (
                _Way("direct", first.url, first, _DIRECT_BATCH),
                _Way("interactive", stack.api, second, _INTERACTIVE_BATCH),
            )
            files = {way: _upload(client, options.folder, way.model) for way in ways}
            for number in options.turns(_ALL_SECONDS):
                for way in ways:
                    wait_until_quiet(stack)
                    alone = asyncio.run(_calls(way, 0.0, seconds))
                    batch = batches.create(client, files[way])
                    beside = asyncio.run(_calls(way, _RAMP_SECONDS, seconds))
                    client.cancel(batch.id)
                    # Seconds of slots that the calls did not need.
                    left = _SLOTS * beside.lasted - alone.total
                    slowdown = (beside.p95 / alone.p95 - 1) * 100
                    used = beside.lines * _mean_seconds() / left * 100
                    figures[way.name].slowdowns.append(slowdown)
                    figures[way.name].uses.append(used)
                    options.report(
                        f"round {number}, {way.name}: p95 {alone.p95:.3f} s alone, {beside.p95:.3f} s beside "
                        f"a batch, which used {used:.0f} % of the rest"
                    )
    return [figure for name, found in figures.items() for figure in _described(name, found)]


def _described(name: str, found: _Figures) -> list[Figure]:
    p95 = f"95th percentile of {name} calls, longer beside a batch"
    return [
        Figure(f"{name}.p95", p95, found.slowdowns, "%", Target(10.0)),
        Figure(
            f"{name}.used",
            f"slots left by {name} calls that a batch uses",
            found.uses,
            "%",
            Target(85.0, "at least"),
        ),
    ]


@contextmanager
def _backend() -> Generator[Simulator]:
    slots = ("--slots", str(_SLOTS), "--direct-queue", str(_QUEUE), "--output-tokens", "16")
    with simulator(*slots, "--latency-ms", str(_LATENCY_MS), "--jitter", str(_JITTER)) as backend:
        yield backend


def _models(first: Simulator, second: Simulator) -> dict[str, object]:
    """Return the models of the registry file, each with one backend.

    - The batch that runs during direct calls is sent to the backend `first`. While direct calls use all slots
      of `first`, it refuses lines of the batch.
    - Calls through the API, and the batch that runs during these calls, are sent to the backend `second`. It
      answers all requests in the order in which they arrive.
    """
    cooperative = {"url": first.url, "send_dispatch_header": True, "in_flight": _SLOTS}
    plain = {"url": second.url, "in_flight": _SLOTS}
    backends = {_DIRECT_BATCH: cooperative, _INTERACTIVE_BATCH: plain, _CALLED: plain}
    return {model: {"backends": [place]} for model, place in backends.items()}


def _upload(client: Client, folder: Path, model: str) -> str:
    lines = folder / f"direct-{model}.jsonl"
    write_input(lines, _LINES, (model,))
    return batches.upload(client, lines)


def _mean_seconds() -> float:
    """Return the mean time of a response of the simulator in seconds, including its lognormal factor."""
    return _LATENCY_MS / 1000 * math.exp(_JITTER**2 / 2)


async def _calls(way: _Way, ramp: float, seconds: float) -> _Measured:
    """Send calls at random times with a fixed mean rate. Return the measured durations.

    Each run measures the same calls.

    Args:
        ramp: seconds before the measurement. In this time, calls are sent, but not measured.
        seconds: seconds after the ramp in which the measured calls are sent.
    """
    transport = PooledTransport(connect_seconds=10.0)
    try:
        before_ramp = await _send(transport, way, random.Random(_SEED + 1), ramp)
        before, began = await asyncio.to_thread(way.completed), time.perf_counter()
        calls = await _send(transport, way, random.Random(_SEED), seconds)
        took = sorted(await asyncio.gather(*calls))
        lasted = time.perf_counter() - began
        lines = await asyncio.to_thread(way.completed) - before
        await asyncio.gather(*before_ramp)
    finally:
        await transport.aclose()
    return _Measured(took[int(len(took) * 0.95)], sum(took), lines, lasted)


async def _send(
    transport: PooledTransport, way: _Way, rng: random.Random, seconds: float
) -> list[asyncio.Task[float]]:
    """Send calls at random times for `seconds`. Return their tasks, some of which may still run."""
    due, began, tasks = 0.0, time.perf_counter(), list[asyncio.Task[float]]()
    while (due := due + rng.expovariate(_ARRIVALS)) < seconds:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.create_task(_call(transport, way.url, len(tasks), began + due)))
    return tasks


async def _call(transport: PooledTransport, url: str, number: int, due: float) -> float:
    """Send one call. Return the seconds from the time `due` until its response.

    Raise SystemExit if the response is not a success.
    """
    body = {"model": _CALLED, "messages": [{"role": "user", "content": f"Question {number}"}]}
    target, headers = TargetUrl.of(f"{url}{batches.ENDPOINT}"), [(b"content-type", b"application/json")]
    request = BackendRequest(b"POST", target, headers, json.dumps(body).encode())
    answer = await transport.exchange(request, max_bytes=_MAX_ANSWER_BYTES, seconds=_TIMEOUT_SECONDS)
    if answer.status != 200:
        raise SystemExit(f"a call was answered with {answer.status}: {answer.body[:500]!r}")
    return time.perf_counter() - due


SECTION = Section(
    "direct",
    "Calls that cannot wait, beside a batch",
    f"Two simulators with {_SLOTS} slots; answers take {_LATENCY_MS} ms (lognormal, sigma {_JITTER}). "
    f"Calls come at random times, {_ARRIVALS:g} a second, and a batch has lines for all of the time. "
    "*Direct* calls go straight to a backend that serves them first and refuses lines of batches while all "
    "slots are taken. *Interactive* calls go through the API to a backend that serves all in order.",
    2.0,
    measure,
    on_the_page=False,
)
