"""An engine before a function that answers, with a pool as the one over sockets has."""

import asyncio

import httpx

from batchwright.inference.engine import Answer, Ended, Exchange, Request
from batchwright.inference.httpx_engine import HttpxEngine


class PooledEngine(HttpxEngine):
    """A request goes out at once where one before it has left its connection."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        super().__init__(transport, connect_seconds=1)
        self._kept = 0
        self._under_way_alone: set[asyncio.Task[None]] = set()
        self.begun = 0  # that nobody awaited

    async def exchange(self, request: Request, *, most_bytes: int, seconds: float) -> Answer:
        self._kept = max(self._kept - 1, 0)
        answer = await super().exchange(request, most_bytes=most_bytes, seconds=seconds)
        self._kept += 1
        return answer

    def begin(self, request: Request, *, most_bytes: int, seconds: float, ended: Ended) -> Exchange | None:
        if not self._kept:
            return None

        async def tell() -> None:
            try:
                answer = await self.exchange(request, most_bytes=most_bytes, seconds=seconds)
            except Exception as error:  # told where it is expected
                ended(error)
            else:
                ended(answer)

        self.begun += 1
        task = asyncio.create_task(tell())
        self._under_way_alone.add(task)
        task.add_done_callback(self._under_way_alone.discard)
        return _Begun(task)


class _Begun:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def call_off(self) -> None:
        self._task.cancel()
