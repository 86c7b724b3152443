"""Where scenarios play: a stack with workers of the test's own, and a tenant for each scenario."""

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
    """Of a scene; they go with the context that `parts` opens."""

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
        """Another one each time: whoever had slices cancelled waits a while for its turn among tenants."""
        return f"tenant-{self._scenarios}"

    @property
    def backend(self) -> Backend:
        return Backend(self.stack.simulator)

    async def ready(self) -> None:
        """For the next scenario: the backend is well, and the client another tenant's."""
        self._scenarios += 1
        await self.client.close()
        self.client = self.stack.client(self.tenant)
        await self.backend.heal()


@asynccontextmanager
async def parts(logs: Path, settings: dict[str, str]) -> AsyncGenerator[Parts]:
    """On ports and in directories of their own, gone at the end."""
    with dev("--workers", "0", data=None, **settings) as stack:
        temporal = await connect(
            load(temporal_address=stack.now.temporal, temporal_namespace=stack.now.namespace)
        )
        async with workers(stack, logs, **settings) as fleet:
            yield Parts(stack, fleet, temporal)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = _SECONDS) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(_LOOK_SECONDS)
