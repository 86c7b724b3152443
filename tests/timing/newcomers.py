"""`python -m tests.timing.newcomers`: measures how long a new tenant waits for its first response on a
disturbed stack.
"""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from openai import APIStatusError, AsyncOpenAI
from openai.types import Batch
from rich.console import Console

from tests.e2e.batches import chat_lines, submit
from tests.e2e.stack import MODELS
from tests.timing.__main__ import SETTINGS
from tests.timing.loaded_stack import ANSWER_SECONDS, LoadedStack, loaded_stack
from tests.timing.scene import until

TENANTS = ("busy-a", "busy-b", "busy-c")
_BUSY = chat_lines(MODELS, each=400)
_FEW = chat_lines(MODELS, each=4)
_SLOW_SECONDS, _BROKEN_SECONDS = 5.0, 12.0
_PAUSE = 4.0  # between two things that are done to the stack
_GIVEN_UP_SECONDS = 240.0
MOST = 120.0  # an outage's deferral, a dead worker's slots and its slices' turns, on a loaded machine


class Trouble:
    """A source of random disturbances of a stack and of the batches of its busy tenants.

    Equal seeds give equal disturbances.
    """

    def __init__(self, there: LoadedStack, seed: int, say: Callable[[str], None]) -> None:
        self._loaded, self._say = there, say
        self._random = random.Random(seed)
        self._batches: dict[str, list[Batch]] = {tenant: [] for tenant in TENANTS}
        self.last = ""
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self.cancels,
            self.pauses,
            self.closes,
            self.kills,
            self.drains,
            self.slows,
            self.breaks,
        ]

    async def run(self, until_at: float) -> None:
        """Cause one disturbance after another until `until_at`, a time of `time.monotonic`."""
        while time.monotonic() < until_at:
            await self._fill()
            kind = self._random.choice(self._kinds)
            self.last = kind.__name__
            self._say(f"{kind.__name__}")
            with suppress(APIStatusError):  # it ended by itself meanwhile
                await kind()
            await asyncio.sleep(_PAUSE)

    async def cancels(self) -> None:
        tenant, batch = self._any()
        async with self._client(tenant) as client:
            await client.batches.cancel(batch.id)

    async def pauses(self) -> None:
        tenant, batch = self._any()
        async with self._client(tenant) as client:
            await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
            await asyncio.sleep(_PAUSE)
            await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)

    async def closes(self) -> None:
        tenant = self._random.choice(TENANTS)
        async with self._client(tenant) as client:
            self._batches[tenant].append(await submit(client, _BUSY, "10s"))

    async def kills(self) -> None:
        await self._replace(signal.SIGKILL)

    async def drains(self) -> None:
        await self._replace(signal.SIGTERM)

    async def slows(self) -> None:
        await self._answers(kind="slow", seconds=_SLOW_SECONDS, rate=1.0)

    async def breaks(self) -> None:
        await self._answers(kind="503", rate=1.0)

    async def _answers(self, **fault: str | float) -> None:
        backend = self._loaded.backend
        await backend.heal()
        await backend.faults(**fault)
        await asyncio.sleep(_BROKEN_SECONDS)
        await backend.heal()
        await backend.faults(kind="slow", seconds=ANSWER_SECONDS, rate=1.0)

    async def _replace(self, number: signal.Signals) -> None:
        there = self._loaded
        worker = there.workers.pop(0)
        worker.signal(number)
        there.workers.append(await there.fleet.start("inference"))
        await worker.process.wait()

    async def _fill(self) -> None:
        """Submit batches until each busy tenant has batches that wait."""
        for tenant, batches in self._batches.items():
            async with self._client(tenant) as client:
                while len(batches) < 3:
                    batches.append(await submit(client, _BUSY))
                found = [await client.batches.retrieve(batch.id) for batch in batches]
                self._batches[tenant] = [one for one in found if one.status in ("validating", "in_progress")]

    def _any(self) -> tuple[str, Batch]:
        tenant = self._random.choice([tenant for tenant in TENANTS if self._batches[tenant]])
        return tenant, self._random.choice(self._batches[tenant])

    def _client(self, tenant: str) -> AsyncOpenAI:
        return self._loaded.stack.client(tenant)


async def first_answer(there: LoadedStack, name: str) -> float:
    """Submit a small batch of the new tenant `name`. Return the seconds until its first line has a result.

    Raises:
        TimeoutError: no line has a result after four minutes.
    """
    began = time.monotonic()
    async with there.stack.client(name) as client, asyncio.timeout(_GIVEN_UP_SECONDS):
        batch = await submit(client, _FEW)

        async def is_answered() -> bool:
            counts = (await client.batches.retrieve(batch.id)).request_counts
            return counts is not None and counts.completed > 0

        await until(is_answered)
    return time.monotonic() - began


async def measure(seconds: float, seed: int, say: Callable[[str], None]) -> list[tuple[float, str]]:
    """Return the seconds that each new tenant waited, and the disturbances during this time."""
    found: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(prefix="batchwright-strangers-", ignore_cleanup_errors=True) as folder:
        async with loaded_stack(Path(folder), 1, **SETTINGS) as there:
            await there.ready()
            trouble, until_at = Trouble(there, seed, say), time.monotonic() + seconds
            running = asyncio.create_task(trouble.run(until_at))
            while time.monotonic() < until_at and not running.done():
                before, began = trouble.last, time.monotonic()
                try:
                    waited = await first_answer(there, f"new-{len(found)}")
                except TimeoutError:
                    waited = time.monotonic() - began
                found.append((waited, f"{before} .. {trouble.last}"))
                say(f"    {waited:.1f} s ({found[-1][1]})")
            await running
    return found


def run(
    seconds: Annotated[float, typer.Option(min=10, help="How long there is trouble.")] = 240,
    seed: Annotated[int, typer.Option(help="Decides what is done.")] = 1,
) -> None:
    """Run small batches of new tenants while other tenants fill the queues and the stack is disturbed."""
    console = Console(width=140)
    found = asyncio.run(measure(seconds, seed, lambda text: console.print(text, markup=False)))
    waits = sorted(found, reverse=True)
    console.print(f"{len(found)} newcomers; the longest waits: {waits[:5]}", markup=False)
    raise typer.Exit(1 if waits[0][0] > MOST else 0)


if __name__ == "__main__":
    typer.run(run)
