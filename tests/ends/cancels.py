"""A cancel at each point of a batch's life, beside another tenant's batch that fills every slot."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from openai import ConflictError
from openai.types import Batch

from tests.e2e.batches import submit
from tests.ends.house import End, House, Lines
from tests.ends.scene import until
from tests.ends.windows import FEW, LINES, MANY
from tests.integration.commands import batchwright

_TRIES = 5
Scenario = Callable[[House], Awaitable[tuple[End, float]]]
"""Of a house: the end, and when the cancel was asked for."""


async def ingesting(house: House) -> tuple[End, float]:
    return await _cancelled(house, await submit(house.client, MANY), MANY)


async def queued_behind_another_batch(house: House) -> tuple[End, float]:
    before = await submit(house.client, LINES)
    await house.settled(before)
    batch = await submit(house.client, FEW)
    await until(lambda: _has_begun(house, batch))
    found = await _cancelled(house, batch, FEW)
    await _cancelled(house, before, LINES)
    return found


async def running_with_nothing_settled(house: House) -> tuple[End, float]:
    """The backend never answers: what is in flight has all of its grace."""
    await house.never_answered()
    batch = await submit(house.client, LINES)
    await until(lambda: _has_begun(house, batch))
    found = await _cancelled(house, batch, LINES)
    await house.dismiss_hands()
    return found


async def running_with_some_settled(house: House) -> tuple[End, float]:
    batch = await submit(house.client, LINES)
    await house.settled(batch, 20)
    return await _cancelled(house, batch, LINES)


async def finalizing_with_all_settled(house: House) -> tuple[End, float]:
    """A cancel that comes while the files are written; tried again where they were done before it came."""
    await house.backend.heal()
    for _ in range(_TRIES):
        batch = await submit(house.client, MANY)
        await until(lambda made=batch: _has_settled(house, made))
        with suppress(ConflictError):
            return await _cancelled(house, batch, MANY)
    raise TimeoutError(f"No cancel of {_TRIES} came while the files were written.")


async def twice(house: House) -> tuple[End, float]:
    batch = await submit(house.client, LINES)
    await house.settled(batch)
    asked_at = time.time()
    await house.client.batches.cancel(batch.id)
    await house.client.batches.cancel(batch.id)
    return await house.end(batch, LINES), asked_at


async def from_the_api_and_the_command_line_at_once(house: House) -> tuple[End, float]:
    batch = await submit(house.client, LINES)
    await house.settled(batch)
    told = ("cancel", batch.id, "--url", house.stack.now.api, "--tenant", house.tenant)
    asked_at = time.time()
    _, command = await asyncio.gather(house.client.batches.cancel(batch.id), batchwright(*told))
    assert command.complained == ""
    return await house.end(batch, LINES), asked_at


async def paused(house: House) -> tuple[End, float]:
    batch = await submit(house.client, LINES)
    await house.settled(batch)
    await house.client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
    return await _cancelled(house, batch, LINES)


async def with_no_worker_for_its_models(house: House) -> tuple[End, float]:
    batch = await submit(house.client, LINES)
    await house.settled(batch)
    await house.lose_hands()
    return await _cancelled(house, batch, LINES)


async def with_no_worker_at_all(house: House) -> tuple[End, float]:
    """The cancel waits for the first worker; the time counts from when there is one."""
    batch = await submit(house.client, LINES)
    await house.settled(batch)
    await asyncio.gather(house.lose_hands(), house.lose_io())
    await house.client.batches.cancel(batch.id)
    await house.start_io()
    back_at = time.time()
    return await house.end(batch, LINES), back_at


CANCELS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        ingesting,
        queued_behind_another_batch,
        running_with_nothing_settled,
        running_with_some_settled,
        finalizing_with_all_settled,
        twice,
        from_the_api_and_the_command_line_at_once,
        paused,
        with_no_worker_for_its_models,
        with_no_worker_at_all,
    )
}


async def _cancelled(house: House, batch: Batch, lines: Lines) -> tuple[End, float]:
    asked_at = time.time()
    await house.client.batches.cancel(batch.id)
    return await house.end(batch, lines), asked_at


async def _has_begun(house: House, batch: Batch) -> bool:
    return await house.status(batch) == "in_progress"


async def _has_settled(house: House, batch: Batch) -> bool:
    return await house.status(batch) in ("finalizing", "completed")
