"""The API with interactive calls (requests that it sends to a backend immediately), and fake backends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from batchwright.api.app import build_app
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.api.services.calls.interactive_calls import InteractiveCalls
from batchwright.contracts.model_registry.registry_config import BackendConfig, ModelConfig
from batchwright.database.records import BackendLoad
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.hooks import HookCall, Refused
from batchwright.inference.router import ModelRouter
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.inference.upstream import Backend
from batchwright.rules.dispatch.retry_policy import RetryPolicy
from batchwright.telemetry.metrics import Metrics
from tests.fakes.api import Served
from tests.fakes.batch_schedules import MemoryBatchSchedules
from tests.fakes.gateway import MemoryGateway
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.routing import Clock
from tests.fakes.settings import load
from tests.fakes.storage import MemoryStorage
from tests.fakes.tables.rows import Rows

CHAT = "/v1/chat/completions"
A, B = "http://a", "http://b"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
ASK = {"model": "llama", "messages": MESSAGES}
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "llama",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}],
    "usage": USAGE,
}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
MINUTE = timedelta(minutes=1)
NOW = datetime.now(UTC)
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": CHAT,
    "raw_path": CHAT.encode(),
    "query_string": b"",
    "root_path": "",
    "headers": [(b"content-type", b"application/json"), (b"host", b"api")],
    "client": ("127.0.0.1", 1),
    "server": ("api", 80),
}
Handle = Callable[[httpx.Request], httpx.Response]


def chunk(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    fields = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "llama"}
    return b"data: %b\n\n" % json.dumps({**fields, "choices": [choice], "usage": None}).encode()


LAST = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()


class Pieces(httpx.AsyncByteStream):
    """A response body that is sent in pieces.

    After the last piece, it raises `error` if there is one. Otherwise, if `hangs` is True, it never ends.
    """

    def __init__(self, *pieces: bytes, error: Exception | None = None, hangs: bool = False) -> None:
        self._pieces, self._error, self._hangs = pieces, error, hangs
        self.is_closed, self.is_hanging = False, asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error
        if self._hangs:
            self.is_hanging.set()
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.is_closed = True


def answered(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=ANSWER)


def refuses_secrets(call: HookCall) -> None:
    if b"secret" in call.body:
        raise Refused("The request holds a secret.")
    if b"bug" in call.body:
        raise KeyError("sk-of-the-operator")


async def adds_the_tenant(call: HookCall) -> dict[str, object] | None:
    if b"who" not in call.body:
        return None
    assert call.batch_id == ""
    return {**json.loads(call.body), "user": f"{call.tenant} {call.model} {call.endpoint} {call.custom_id}"}


# Called once each, while hooks check the next call.
during_hooks: list[Callable[[], Awaitable[None]]] = []


async def lets_the_test_act(_: HookCall) -> None:
    while during_hooks:
        await during_hooks.pop()()


class Fixture:
    """The API with interactive calls, and a model `llama` whose backends `handlers` imitate."""

    def __init__(self, **settings: Any) -> None:
        hooks = [
            f"{__name__}:{hook.__name__}" for hook in (refuses_secrets, adds_the_tenant, lets_the_test_act)
        ]
        self.settings = load(
            interactive_passthrough=True, max_response_bytes=1024 * 1024, pre_call_hooks=hooks, **settings
        )
        self.database, self.metrics, self.served = MemoryDatabase(), Metrics(), Served("llama")
        self._deps = deps = ApiDependencies(
            self.settings,
            self.database,
            MemoryStorage(),
            MemoryGateway(MemoryBatchSchedules()),
            self.served,
            self.metrics,
            recent_seconds=0,
            routers=self,
        )
        self.stopping, self.held_bytes = deps.stopping, deps.held_bytes
        self.calls = InteractiveCalls(deps, self)
        self.clear()
        self.app = build_app(deps, BatchEvents(deps), self.calls)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://api")
        self.openai = AsyncOpenAI(
            base_url="http://api/v1",
            api_key="of-the-client",
            max_retries=0,
            http_client=self.http,  # pyright: ignore[reportArgumentType] - it takes httpx too, its types do not
        )

    def clear(self) -> None:
        """Reset the fakes and the calls to their initial state, for the next test."""
        self.handlers: dict[str, Handle] = {A: answered}
        self.requests: list[httpx.Request] = []
        vars(self.database.rows).update(vars(Rows()))
        vars(self.calls).update(vars(InteractiveCalls(self._deps, self)))
        self.stopping.is_set = self.stopping.drained.is_set = False
        self.clock = Clock()
        self.served.prices.clear()
        self.metrics.remove_series("model", "llama")
        self.router: ModelRouter | None = None
        self.register(BackendConfig(url=A))

    def register(self, *backends: BackendConfig, **how: object) -> None:
        self.router = self.router_to("llama", *backends, **how)

    def router_to(self, model: str, *backends: BackendConfig, **how: object) -> ModelRouter:
        config = ModelConfig.model_validate({"backends": list(backends), **how})
        router = ModelRouter(model, RetryPolicy(), 5, self.clock)
        transport = HttpxTransport(httpx.MockTransport(self._handle), connect_seconds=1)
        clients = [
            Backend(each.url, InferenceClient(transport, self.settings, each, of_batches=False))
            for each in backends
        ]
        router.update(config, clients, RetryPolicy())
        return router

    def router_for(self, model: str) -> ModelRouter | None:
        return self.router if model == "llama" else None

    def retain_unlisted(self, awaited: Collection[str]) -> None:
        self.retained = set(awaited)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.handlers[f"http://{request.url.host}"](request)

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"batchwright_{name}", labels) or 0.0

    async def load(self) -> list[BackendLoad]:
        await self.calls.publish()
        return await self.database.workers.interactive_load(MINUTE)

    async def used_tokens(self) -> int:
        """Return the number of tokens in all published usage, also in the usage of a day that has ended
        meanwhile.
        """
        await self.calls.publish()
        today = datetime.now(UTC).date()
        days = [
            await self.database.quotas.daily_usage(day, except_for="me")
            for day in (today - timedelta(days=1), today)
        ]
        return sum(row.tokens for rows in days for row in rows)


async def streamed(api: Fixture, **how: Any) -> list[str]:
    stream = await api.openai.chat.completions.create(model="llama", messages=MESSAGES, stream=True, **how)
    return [choice.delta.content or "" async for each in stream for choice in each.choices]
