"""HTTP transport that calls a function instead of a backend. It has a connection pool like the real one."""

import asyncio

import httpx

from batchwright.inference.transport.base import BackendRequest, BackendResponse, Exchange, OnComplete
from batchwright.inference.transport.httpx_transport import HttpxTransport


class PooledEngine(HttpxTransport):
    """A transport that counts idle connections.

    A request can begin immediately if an earlier request has left a connection idle.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        super().__init__(transport, connect_seconds=1)
        self._idle_connections = 0
        self._under_way_alone: set[asyncio.Task[None]] = set()
        self.begun = 0  # that nobody awaited

    async def exchange(self, request: BackendRequest, *, max_bytes: int, seconds: float) -> BackendResponse:
        self._idle_connections = max(self._idle_connections - 1, 0)
        answer = await super().exchange(request, max_bytes=max_bytes, seconds=seconds)
        self._idle_connections += 1
        return answer

    def try_exchange_now(
        self, request: BackendRequest, *, max_bytes: int, seconds: float, ended: OnComplete
    ) -> Exchange | None:
        if not self._idle_connections:
            return None

        async def report() -> None:
            try:
                answer = await self.exchange(request, max_bytes=max_bytes, seconds=seconds)
            except Exception as error:  # reported to the caller
                ended(error)
            else:
                ended(answer)

        self.begun += 1
        task = asyncio.create_task(report())
        self._under_way_alone.add(task)
        task.add_done_callback(self._under_way_alone.discard)
        return _Begun(task)


class _Begun:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()
