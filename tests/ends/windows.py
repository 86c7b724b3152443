"""The window closes: at each point of a batch's life, beside another tenant's batch that fills every slot."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from openai.types import Batch

from starter.client import Client
from tests.e2e.batches import chat_lines, submit
from tests.e2e.stack import MODELS
from tests.ends.house import End, House, Lines

LINES = chat_lines(MODELS, each=1500)
FEW = chat_lines(MODELS, each=100)
MANY = chat_lines(MODELS, each=16_000)
Scenario = Callable[[House, int], Awaitable[tuple[End, float]]]
"""Of a house and the window's seconds: the end, and the moment from which it can be expected."""


async def running(house: House, window: int) -> tuple[End, float]:
    batch = await submit(house.client, LINES, f"{window}s")
    return await _ended(house, batch, LINES)


async def running_at_a_backend_that_never_answers(house: House, window: int) -> tuple[End, float]:
    await house.never_answered()
    batch = await submit(house.client, LINES, f"{window}s")
    found = await _ended(house, batch, LINES)
    await house.dismiss_hands()
    return found


async def queued_behind_another_batch(house: House, window: int) -> tuple[End, float]:
    """Of the same tenant, which is served in order."""
    before = await submit(house.client, LINES)
    await house.settled(before)
    batch = await submit(house.client, FEW, f"{window}s")
    found = await _ended(house, batch, FEW)
    await house.client.batches.cancel(before.id)
    await house.end(before, LINES)
    return found


async def held_by_a_rate(house: House, window: int) -> tuple[End, float]:
    """A request a second, for two batches."""
    await asyncio.to_thread(_set_rates, house, 1.0)
    try:
        batch = await submit(house.client, FEW, f"{window}s")
        return await _ended(house, batch, FEW)
    finally:
        await asyncio.to_thread(_set_rates, house, 0.0)


async def ingesting(house: House, window: int) -> tuple[End, float]:
    """The shortest window, and an input that takes longer: all of it is read, for each line gets an error."""
    batch = await submit(house.client, MANY, "1s")
    return await _ended(house, batch, MANY)


async def with_no_worker_for_its_models(house: House, window: int) -> tuple[End, float]:
    """They are killed while they have its slices."""
    batch = await submit(house.client, LINES, f"{window}s")
    await house.settled(batch)
    await house.lose_hands()
    return await _ended(house, batch, LINES)


async def with_no_worker_at_all(house: House, window: int) -> tuple[End, float]:
    """The first one comes back when the window has been over for some seconds, and only writes files."""
    batch = await submit(house.client, LINES, f"{window}s")
    await house.settled(batch)
    await asyncio.gather(house.lose_hands(), house.lose_io())
    assert batch.expires_at is not None
    await asyncio.sleep(max(0.0, batch.expires_at + 3 - time.time()))
    await house.start_io()
    back_at = time.time()
    return (await _ended(house, batch, LINES))[0], back_at


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


async def _ended(house: House, batch: Batch, lines: Lines) -> tuple[End, float]:
    end = await house.end(batch, lines)
    assert batch.expires_at is not None
    return end, batch.expires_at


def _set_rates(house: House, rate: float) -> None:
    with Client(house.stack.now.api) as client:
        for model in MODELS:
            client.set_rate(model, rate)
