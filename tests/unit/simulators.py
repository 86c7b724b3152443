"""A simulator in the test's own loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx

from simulator.backend import Backend, Options
from simulator.exchange import Answer, Exchange
from simulator.ledger import Report
from simulator.server import Handler, Server

MODEL = "llama-3.1-8b"
OTHER = "qwen2.5-7b"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[str]:
    server = Server(handler)
    await server.start("127.0.0.1", 0)
    try:
        yield server.url
    finally:
        await server.stop()


class Simulated:
    """A backend, and a client of it."""

    def __init__(self, backend: Backend, http: httpx.AsyncClient) -> None:
        self.backend = backend
        self.http = http

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    @property
    def ledger(self) -> Report:
        return self.backend.ledger.report()

    async def chat(
        self,
        text: str = "hello",
        *,
        model: str = MODEL,
        user: str | None = None,
        request_id: str | None = None,
    ) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}]} | (
            {"user": user} if user else {}
        )
        headers = {"x-request-id": request_id} if request_id else {}
        return await self.http.post(CHAT, json=body, headers=headers)

    async def break_it(self, **fault: str | float) -> httpx.Response:
        return await self.http.post("/admin/faults", json=fault)


@asynccontextmanager
async def simulated(options: Options | None = None) -> AsyncGenerator[Simulated]:
    backend = Backend(options or Options(models=(MODEL, OTHER)))
    async with (
        serving(backend.handle) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, verify=False) as http,
    ):
        yield Simulated(backend, http)


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything else go on until `condition` holds."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what it waits for is no asyncio object
            await asyncio.sleep(0)


def echo(exchange: Exchange) -> None:
    """Answers with the method, the path and the body."""
    request = exchange.request
    exchange.answer(Answer(200, f"{request.method} {request.path} ".encode() + request.body))
