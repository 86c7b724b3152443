"""Section: single calls with held connections: one at a time, and many per second."""

import asyncio
import statistics
import time
from typing import NamedTuple

import httpx

from bench.inputs import MODELS
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _ALONE = 256, 5
_PER_SECOND, _SECONDS = 200, 20
_LEAST = 195.0  # answers a second: they keep up with the calls, except for a jitter at both ends
_ALL_SECONDS = 120.0
_BODY = {
    "model": MODELS[0],
    "messages": [{"role": "user", "content": "x" * 800}],
    "service_tier": "flex",
}


class _Call(NamedTuple):
    sent_at: float
    answered_at: float

    @property
    def seconds(self) -> float:
        return self.answered_at - self.sent_at


def measure(options: SectionOptions) -> list[Figure]:
    seconds = options.size(_SECONDS, 2)
    alone: list[float] = []
    medians: list[float] = []
    rates: list[float] = []
    with (
        simulator() as backend,
        running_stack(options.folder / "calls", backend.url, in_flight=_IN_FLIGHT) as stack,
    ):
        asyncio.run(_alone(stack, 1))
        for number in options.turns(_ALL_SECONDS):
            wait_until_quiet(stack)
            alone += asyncio.run(_alone(stack, _ALONE))
            median, rate = asyncio.run(_sustained(stack, _PER_SECOND * seconds))
            medians.append(median)
            rates.append(rate)
            options.report(f"round {number}: {alone[-1]:.2f} s alone, {median:.2f} s at {rate:.0f} a second")
    added = f"a call added to its backend's answer, {_PER_SECOND} new calls a second, median"
    return [
        Figure("calls.alone_s", "one call alone, sent to answered", alone, "s", Target(1.5)),
        Figure("calls.median_s", added, medians, "s", Target(1.5)),
        Figure(
            "calls.rate", "answers a second while they come", rates, "calls/s", Target(_LEAST, "at least")
        ),
    ]


async def _alone(stack: RunningStack, count: int) -> list[float]:
    async with _client(stack) as client:
        return [(await _call(client)).seconds for _ in range(count)]


async def _sustained(stack: RunningStack, count: int) -> tuple[float, float]:
    """Send `count` calls at a steady rate. Return the median time until an answer, and answers per second.

    Calls are sent when they are due, also if earlier ones have no answer yet.
    """
    async with _client(stack) as client:
        began, sent = time.perf_counter(), list[asyncio.Task[_Call]]()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / _PER_SECOND - time.perf_counter()))
            sent.append(asyncio.create_task(_call(client)))
        calls = await asyncio.gather(*sent)
    answered = sorted(call.answered_at for call in calls)
    return statistics.median(call.seconds for call in calls), count / (answered[-1] - answered[0])


async def _call(client: httpx.AsyncClient) -> _Call:
    started = time.perf_counter()
    (await client.post("/v1/chat/completions", json=_BODY)).raise_for_status()
    return _Call(started, time.perf_counter())


def _client(stack: RunningStack) -> httpx.AsyncClient:
    # The API closes idle connections after 5 s: none is used again shortly before.
    limits = httpx.Limits(max_connections=500, max_keepalive_connections=500, keepalive_expiry=2.0)
    return httpx.AsyncClient(base_url=stack.api, limits=limits, timeout=300, trust_env=False)


SECTION = Section(
    "calls",
    "Single calls",
    "Chat completions of 800 characters with the service tier `flex`, a simulator that answers at once, one "
    "worker. Everything, the clients too, runs on the same machine.",
    2.5,
    measure,
)
