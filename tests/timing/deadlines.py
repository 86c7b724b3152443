"""Scenarios in which the completion window closes, one for each point of a batch's life.

Another tenant's batch fills all slots. Each scenario returns how the batch ended, and the Unix time from
which the delay counts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from openai.types import Batch

from batchwright.starter.client import Client
from batchwright.starter.operator_client import OperatorClient
from tests.e2e.batches import chat_lines, submit
from tests.e2e.stack import MODELS
from tests.timing.loaded_stack import End, Lines, LoadedStack

LINES = chat_lines(MODELS, each=1500)
FEW = chat_lines(MODELS, each=100)
MANY = chat_lines(MODELS, each=16_000)
Scenario = Callable[[LoadedStack, int], Awaitable[tuple[End, float]]]
"""Takes the loaded stack and the window in seconds. Returns the end and when it is expected."""


async def running(loaded: LoadedStack, window: int) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES, f"{window}s")
    return await _ended(loaded, batch, LINES)


async def running_at_a_backend_that_never_answers(loaded: LoadedStack, window: int) -> tuple[End, float]:
    await loaded.never_answered()
    batch = await submit(loaded.client, LINES, f"{window}s")
    found = await _ended(loaded, batch, LINES)
    await loaded.stop_workers()
    return found


async def queued_behind_another_batch(loaded: LoadedStack, window: int) -> tuple[End, float]:
    """Let the window close while the batch waits for an earlier batch of the same tenant.

    Both have the same size, because a smaller batch would go first.
    """
    before = await submit(loaded.client, LINES)
    await loaded.settled(before)
    batch = await submit(loaded.client, LINES, f"{window}s")
    found = await _ended(loaded, batch, LINES)
    await loaded.client.batches.cancel(before.id)
    await loaded.end(before, LINES)
    return found


async def held_by_a_rate(loaded: LoadedStack, window: int) -> tuple[End, float]:
    """Let the window close while a rate limit of one request per second slows down this batch and another
    one.
    """
    await asyncio.to_thread(_set_rates, loaded, 1.0)
    try:
        batch = await submit(loaded.client, FEW, f"{window}s")
        return await _ended(loaded, batch, FEW)
    finally:
        await asyncio.to_thread(_set_rates, loaded, 0.0)


async def ingesting(loaded: LoadedStack, window: int) -> tuple[End, float]:
    """Let the completion window close during ingestion. It has the shortest length that is allowed.

    The whole input is still read, because each line needs an error.
    """
    batch = await submit(loaded.client, MANY, "1s")
    return await _ended(loaded, batch, MANY)


async def with_no_worker_for_its_models(loaded: LoadedStack, window: int) -> tuple[End, float]:
    """Let the window close after the workers that send requests were killed while they ran slices."""
    batch = await submit(loaded.client, LINES, f"{window}s")
    await loaded.settled_in_time(batch)
    await loaded.kill_workers()
    return await _ended(loaded, batch, LINES)


async def with_no_worker_at_all(loaded: LoadedStack, window: int) -> tuple[End, float]:
    """Let the window close while no worker runs.

    A worker that can only write files is started three seconds later.
    """
    batch = await submit(loaded.client, LINES, f"{window}s")
    await loaded.settled_in_time(batch)
    await asyncio.gather(loaded.kill_workers(), loaded.lose_io())
    assert batch.expires_at is not None
    await asyncio.sleep(max(0.0, batch.expires_at + 3 - time.time()))
    await loaded.start_io()
    back_at = time.time()
    return (await _ended(loaded, batch, LINES))[0], back_at


WINDOWS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        running,
        running_at_a_backend_that_never_answers,
        queued_behind_another_batch,
        held_by_a_rate,
        ingesting,
        with_no_worker_for_its_models,
        with_no_worker_at_all,
    )
}


async def _ended(loaded: LoadedStack, batch: Batch, lines: Lines) -> tuple[End, float]:
    end = await loaded.end(batch, lines)
    assert batch.expires_at is not None
    return end, batch.expires_at


def _set_rates(loaded: LoadedStack, rate: float) -> None:
    with Client(loaded.stack.now.api) as client:
        for model in MODELS:
            OperatorClient(client).set_rate(model, rate)
