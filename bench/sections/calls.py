"""Section of the benchmark: single requests (calls) that users send to the API instead of a batch.

The calls are sent one at a time, and then many per second. The connection of a call stays open until its
answer.
"""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from batchwright.api.services.calls.held_calls import MAX_HELD_PER_TENANT
from batchwright.inference.transport.base import BackendRequest, TargetUrl
from batchwright.inference.transport.connection_pool import PooledTransport
from bench.inputs import MODELS
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _ALONE = 256, 5
_PER_SECOND, _SECONDS = 200, 20
_LEAST = 195.0  # answers per second: as many as calls, except for a jitter at both ends
_ALL_SECONDS = 120.0
_MAX_ANSWER_BYTES, _TIMEOUT_SECONDS = 1024 * 1024, 300.0
_BODY = json.dumps(
    {
        "model": MODELS[0],
        "messages": [{"role": "user", "content": "x" * 800}],
        "service_tier": "flex",
    }
).encode()


class Call(NamedTuple):
    due_at: float
    answered_at: float

    @property
    def seconds(self) -> float:
        return self.answered_at - self.due_at


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
        Figure("calls.alone_s", "one call alone, until its answer", alone, "s", Target(1.5)),
        Figure("calls.median_s", added, medians, "s", Target(1.5)),
        Figure(
            "calls.rate", "answers a second while they come", rates, "calls/s", Target(_LEAST, "at least")
        ),
    ]


class _Client:
    """A client of the API that uses little CPU, because it runs on the measured machine.

    It opens at most as many connections as the API allows for one tenant. Further calls wait until a
    connection is free. The time of a call includes this wait.
    """

    def __init__(self, transport: PooledTransport, stack: RunningStack) -> None:
        self._transport, self._places = transport, asyncio.Semaphore(MAX_HELD_PER_TENANT)
        self._target = TargetUrl.of(f"{stack.api}/v1/chat/completions")

    async def call(self, due: float) -> Call:
        """Send a call, and wait for its answer.

        Raise SystemExit if the answer is not a success.

        Args:
            due: time at which the call should be sent, in seconds of `time.perf_counter`.
        """
        async with self._places:
            request = BackendRequest(b"POST", self._target, [(b"content-type", b"application/json")], _BODY)
            answer = await self._transport.exchange(
                request, max_bytes=_MAX_ANSWER_BYTES, seconds=_TIMEOUT_SECONDS
            )
        if answer.status != 200:
            raise SystemExit(f"a call was answered with {answer.status}: {answer.body[:500]!r}")
        return Call(due, time.perf_counter())


@asynccontextmanager
async def _client(stack: RunningStack) -> AsyncGenerator[_Client]:
    transport = PooledTransport(connect_seconds=10.0)
    try:
        yield _Client(transport, stack)
    finally:
        await transport.aclose()


async def _alone(stack: RunningStack, count: int) -> list[float]:
    async with _client(stack) as client:
        return [(await client.call(time.perf_counter())).seconds for _ in range(count)]


async def _sustained(stack: RunningStack, count: int) -> tuple[float, float]:
    """Send `count` calls at a steady rate. Return the median time until an answer, and answers per second.

    The time is in seconds. A call is sent when it is due, even if earlier calls have no answer yet.
    """
    async with _client(stack) as client:
        began, sent = time.perf_counter(), list[asyncio.Task[Call]]()
        for number in range(count):
            due = began + number / _PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent.append(asyncio.create_task(client.call(due)))
        calls = await asyncio.gather(*sent)
    return statistics.median(call.seconds for call in calls), answers_per_second(calls)


def answers_per_second(calls: Sequence[Call]) -> float:
    """Return the answers per second between the first and the last answer. Two or more calls are required."""
    answered = [call.answered_at for call in calls]
    return (len(calls) - 1) / (max(answered) - min(answered))


SECTION = Section(
    "calls",
    "Single calls",
    "Chat completions of 800 characters with the service tier `flex`, a simulator that answers at once, one "
    "worker. Everything, the clients too, runs on the same machine.",
    2.5,
    measure,
    on_the_page=False,
)
