"""Scenarios in which a batch is cancelled, one for each point of a batch's life.

Another tenant's batch fills all slots. Each scenario returns how the batch ended, and the Unix time from
which the delay counts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from openai import ConflictError
from openai.types import Batch

from tests.e2e.batches import submit
from tests.integration.starter.commands import batchwright
from tests.timing.deadlines import FEW, LINES, MANY
from tests.timing.loaded_stack import End, Lines, LoadedStack
from tests.timing.scene import until

_TRIES = 5
Scenario = Callable[[LoadedStack], Awaitable[tuple[End, float]]]
"""Takes the loaded stack. Returns the end and the time at which the cancel was requested."""


async def ingesting(loaded: LoadedStack) -> tuple[End, float]:
    return await _cancelled(loaded, await submit(loaded.client, MANY), MANY)


async def queued_behind_another_batch(loaded: LoadedStack) -> tuple[End, float]:
    before = await submit(loaded.client, LINES)
    await loaded.settled(before)
    batch = await submit(loaded.client, FEW)
    await until(lambda: _has_begun(loaded, batch))
    found = await _cancelled(loaded, batch, FEW)
    await _cancelled(loaded, before, LINES)
    return found


async def running_with_nothing_settled(loaded: LoadedStack) -> tuple[End, float]:
    """Cancel a batch whose backend never answers. Its requests in flight use the whole grace period."""
    await loaded.never_answered()
    batch = await submit(loaded.client, LINES)
    await until(lambda: _has_begun(loaded, batch))
    found = await _cancelled(loaded, batch, LINES)
    await loaded.stop_workers()
    return found


async def running_with_some_settled(loaded: LoadedStack) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch, 20)
    return await _cancelled(loaded, batch, LINES)


async def finalizing_with_all_settled(loaded: LoadedStack) -> tuple[End, float]:
    """Cancel a batch while its files are written.

    If the cancel comes too late, try again with another batch.
    """
    await loaded.backend.heal()
    for _ in range(_TRIES):
        batch = await submit(loaded.client, MANY)
        await until(lambda batch=batch: _has_settled(loaded, batch))
        with suppress(ConflictError):
            return await _cancelled(loaded, batch, MANY)
    raise TimeoutError(f"No cancel of {_TRIES} came while the files were written.")


async def twice(loaded: LoadedStack) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch)
    cancelled_at = time.time()
    await loaded.client.batches.cancel(batch.id)
    await loaded.client.batches.cancel(batch.id)
    return await loaded.end(batch, LINES), cancelled_at


async def from_the_api_and_the_command_line_at_once(loaded: LoadedStack) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch)
    arguments = ("cancel", batch.id, "--url", loaded.stack.now.api, "--tenant", loaded.tenant)
    cancelled_at = time.time()
    _, command = await asyncio.gather(loaded.client.batches.cancel(batch.id), batchwright(*arguments))
    assert command.stderr == ""
    return await loaded.end(batch, LINES), cancelled_at


async def paused(loaded: LoadedStack) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch)
    await loaded.client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
    return await _cancelled(loaded, batch, LINES)


async def with_no_worker_for_its_models(loaded: LoadedStack) -> tuple[End, float]:
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch)
    await loaded.kill_workers()
    return await _cancelled(loaded, batch, LINES)


async def with_no_worker_at_all(loaded: LoadedStack) -> tuple[End, float]:
    """Cancel a batch while no worker runs. The time is measured from the start of the first worker."""
    batch = await submit(loaded.client, LINES)
    await loaded.settled(batch)
    await asyncio.gather(loaded.kill_workers(), loaded.lose_io())
    await loaded.client.batches.cancel(batch.id)
    await loaded.start_io()
    back_at = time.time()
    return await loaded.end(batch, LINES), back_at


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


async def _cancelled(loaded: LoadedStack, batch: Batch, lines: Lines) -> tuple[End, float]:
    cancelled_at = time.time()
    await loaded.client.batches.cancel(batch.id)
    return await loaded.end(batch, lines), cancelled_at


async def _has_begun(loaded: LoadedStack, batch: Batch) -> bool:
    return await loaded.status(batch) == "in_progress"


async def _has_settled(loaded: LoadedStack, batch: Batch) -> bool:
    return await loaded.status(batch) in ("finalizing", "completed")
