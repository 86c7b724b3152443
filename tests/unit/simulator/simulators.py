"""Runs a simulated backend in the event loop of the test."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx

from batchwright.simulator.backend import SimulatedBackend, SimulatorOptions
from batchwright.simulator.exchange import HttpExchange, HttpResponse
from batchwright.simulator.ledger import LedgerReport
from batchwright.simulator.server import Handler, Server

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
    """A running simulated backend, and an HTTP client for it."""

    def __init__(self, backend: SimulatedBackend, http: httpx.AsyncClient) -> None:
        self.backend = backend
        self.http = http

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    @property
    def ledger(self) -> LedgerReport:
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
async def simulated(options: SimulatorOptions | None = None) -> AsyncGenerator[Simulated]:
    backend = SimulatedBackend(options or SimulatorOptions(models=(MODEL, OTHER)))
    async with (
        serving(backend.handle) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, verify=False) as http,
    ):
        yield Simulated(backend, http)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks of the event loop run until `condition()` is True.

    Raise TimeoutError after two minutes.
    """
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0)


def echo(exchange: HttpExchange) -> None:
    """Respond with the method, the path and the body of the request."""
    request = exchange.request
    exchange.respond(HttpResponse(200, f"{request.method} {request.path} ".encode() + request.body))
