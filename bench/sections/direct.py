"""Section: direct callers of a backend beside a batch, on a backend that serves direct callers first."""

import asyncio
import json
import math
import random
import time
from typing import NamedTuple

from batchwright.inference.transport.base import BackendRequest, TargetUrl
from batchwright.inference.transport.pool import PooledTransport
from batchwright.starter.client import Client
from bench import batches
from bench.inputs import MODELS, write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import Simulator, running_stack, simulator, wait_until_quiet

_DIRECT, _BATCH = MODELS[0], MODELS[1]
_SLOTS, _QUEUE = 32, 100
_LATENCY_MS, _JITTER = 400, 0.3
_ARRIVALS = 20.0  # direct calls a second: a quarter of the slots
_SECONDS, _RAMP_SECONDS, _LINES = 16.0, 6.0, 3_000
_SEED = 7
_TIMEOUT_SECONDS, _MAX_ANSWER_BYTES = 60.0, 1024 * 1024
_ALL_SECONDS = 30.0  # one round


class _Direct(NamedTuple):
    """Times of direct callers in seconds: the 95th percentile and the sum."""

    p95: float
    total: float


def measure(options: SectionOptions) -> list[Figure]:
    seconds = _SECONDS if not options.quick else 4.0
    slowdowns: list[float] = []
    uses: list[float] = []
    backend_options = (
        "--slots",
        str(_SLOTS),
        "--direct-queue",
        str(_QUEUE),
        "--latency-ms",
        str(_LATENCY_MS),
    )
    with simulator(*backend_options, "--jitter", str(_JITTER), "--output-tokens", "16") as backend:
        registry, lines = options.folder / "direct.json", options.folder / "direct.jsonl"
        place = {"url": backend.url, "send_dispatch_header": True, "in_flight": _SLOTS}
        registry.write_text(json.dumps({"models": {_BATCH: {"backends": [place]}}}))
        write_input(lines, _LINES, (_BATCH,))
        with (
            running_stack(options.folder / "direct", registry, in_flight=2 * _SLOTS) as stack,
            Client(stack.api) as client,
        ):
            file_id = batches.upload(client, lines)
            for number in options.turns(_ALL_SECONDS):
                wait_until_quiet(stack)
                alone = asyncio.run(_direct_calls(backend, seconds))
                batch = batches.create(client, file_id)
                time.sleep(_RAMP_SECONDS)
                before, began = _completed(backend), time.perf_counter()
                beside = asyncio.run(_direct_calls(backend, seconds))
                done, lasted = _completed(backend) - before, time.perf_counter() - began
                client.cancel(batch.id)
                left = _SLOTS * lasted - alone.total  # seconds of slots that direct callers did not need
                slowdowns.append((beside.p95 / alone.p95 - 1) * 100)
                uses.append(done * _mean_seconds() / left * 100)
                options.report(
                    f"round {number}: p95 {alone.p95:.3f} s alone, {beside.p95:.3f} s beside a batch, which "
                    f"used {uses[-1]:.0f} % of the rest"
                )
    return [
        Figure(
            "direct.p95",
            "95th percentile of direct calls, longer beside a batch",
            slowdowns,
            "%",
            Target(10.0),
        ),
        Figure(
            "direct.used", "slots left by direct calls that a batch uses", uses, "%", Target(85.0, "at least")
        ),
    ]


def _mean_seconds() -> float:
    """Return the mean time of a response, with the lognormal factor of the simulator."""
    return _LATENCY_MS / 1000 * math.exp(_JITTER**2 / 2)


def _completed(backend: Simulator) -> int:
    totals = backend.ledger().models.get(_BATCH)
    return 0 if totals is None else totals.completed


async def _direct_calls(backend: Simulator, seconds: float) -> _Direct:
    """Send direct calls at random times with a fixed mean rate; each run sends the same ones."""
    rng, due, times = random.Random(_SEED), 0.0, list[asyncio.Task[float]]()
    transport, began = PooledTransport(connect_seconds=10.0), time.perf_counter()
    try:
        while (due := due + rng.expovariate(_ARRIVALS)) < seconds:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            times.append(asyncio.create_task(_call(transport, backend.url, len(times), began + due)))
        took = sorted(await asyncio.gather(*times))
    finally:
        await transport.aclose()
    return _Direct(took[int(len(took) * 0.95)], sum(took))


async def _call(transport: PooledTransport, url: str, number: int, due: float) -> float:
    """Send one direct call. Return the seconds from when it was due until its response.

    Raise SystemExit if the response is not a success.
    """
    body = {"model": _DIRECT, "messages": [{"role": "user", "content": f"Question {number}"}]}
    target, headers = TargetUrl.of(f"{url}{batches.ENDPOINT}"), [(b"content-type", b"application/json")]
    request = BackendRequest(b"POST", target, headers, json.dumps(body).encode())
    answer = await transport.exchange(request, most_bytes=_MAX_ANSWER_BYTES, seconds=_TIMEOUT_SECONDS)
    if answer.status != 200:
        raise SystemExit(f"a direct call was answered with {answer.status}: {answer.body[:500]!r}")
    return time.perf_counter() - due


SECTION = Section(
    "direct",
    "Direct callers beside a batch",
    f"A simulator with {_SLOTS} slots that refuses lines of batches while all are taken, and lets direct "
    f"callers wait; answers take {_LATENCY_MS} ms (lognormal, sigma {_JITTER}). Direct calls come at random "
    f"times, {_ARRIVALS:g} a second, straight to the backend; a batch has lines for all of the time.",
    1.0,
    measure,
    on_the_page=False,
)
