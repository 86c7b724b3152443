"""Stack on which the scenarios run one after another. Each scenario has a tenant of its own."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai import AsyncOpenAI
from temporalio.client import Client

from batchwright.settings import load
from batchwright.temporal import connect
from tests.e2e.backend import Backend
from tests.e2e.fleet import Fleet, workers
from tests.e2e.stack import Stack, dev

_SECONDS = 400.0
_LOOK_SECONDS = 0.1


@dataclass
class Parts:
    """A running stack, the worker processes that the test starts, and a Temporal client."""

    stack: Stack
    fleet: Fleet
    temporal: Client


@dataclass
class Scene:
    parts: Parts
    client: AsyncOpenAI = field(init=False)
    _scenarios: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.client = self.stack.client(self.tenant)

    @property
    def stack(self) -> Stack:
        return self.parts.stack

    @property
    def fleet(self) -> Fleet:
        return self.parts.fleet

    @property
    def temporal(self) -> Client:
        return self.parts.temporal

    @property
    def tenant(self) -> str:
        """Tenant of the current scenario.

        Each scenario needs a new tenant, because a tenant waits longer after cancelled slices.
        """
        return f"tenant-{self._scenarios}"

    @property
    def backend(self) -> Backend:
        return Backend(self.stack.simulator)

    async def ready(self) -> None:
        """Prepare the next scenario: clear all faults of the backend, and use a new tenant."""
        self._scenarios += 1
        await self.client.close()
        self.client = self.stack.client(self.tenant)
        await self.backend.heal()


@asynccontextmanager
async def parts(logs: Path, settings: dict[str, str]) -> AsyncGenerator[Parts]:
    """Context manager that starts a stack without workers and yields it. At the end, it removes everything.

    Args:
        logs: directory for the log files of workers.
        settings: environment variables of all processes.
    """
    with dev("--workers", "0", data=None, **settings) as stack:
        temporal = await connect(
            load(temporal_address=stack.now.temporal, temporal_namespace=stack.now.namespace)
        )
        async with workers(stack, logs, **settings) as fleet:
            yield Parts(stack, fleet, temporal)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = _SECONDS) -> None:
    """Wait until `condition` returns True. It is called ten times a second.

    Raises:
        TimeoutError: it is still False after `seconds`.
    """
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(_LOOK_SECONDS)
