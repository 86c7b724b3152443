"""Clients of interactive calls: clients that disconnect, clients that do not read, and the memory that they
use.
"""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from batchwright.api.auth import key_cache
from batchwright.api.middleware import authentication
from batchwright.api.routes.calls import relayed_responses
from batchwright.api.services.calls import held_calls
from batchwright.inference.transport.httpx_transport import HttpxTransport
from tests.fakes.api import error_of
from tests.fakes.api_keys import create_key
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    EVENTS,
    SCOPE,
    A,
    Fixture,
    Pieces,
    chunk,
)

LARGEST = 1024 * 1024  # bytes of an answer that the fixture's settings permit
BODIES = 1000  # bytes that have room for the bodies of all calls of a test


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_call_to_the_backend_ends_with_its_client(
    api: Fixture, is_stream: bool, is_answered: bool
) -> None:
    body, is_cancelled = Pieces(chunk("He"), hangs=True), asyncio.Event()

    class Waiting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if is_answered:
                return httpx.Response(200, headers=EVENTS, stream=body)
            try:
                body.is_hanging.set()
                await asyncio.Event().wait()
            finally:
                is_cancelled.set()
            raise AssertionError

    assert api.router is not None
    backend = api.router.upstreams[0].backend
    backend.client.set_transport(HttpxTransport(Waiting(), connect_seconds=1))
    sent = list[MutableMapping[str, Any]]()
    received: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": json.dumps({**ASK, "stream": is_stream}).encode()}
    ]

    async def receive() -> MutableMapping[str, Any]:
        if received:
            return received.pop()
        while is_answered and is_stream and len(sent) < 2:
            await asyncio.sleep(0)
        await body.is_hanging.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await api.app({**SCOPE}, receive, send)
    assert body.is_closed if is_answered else is_cancelled.is_set()
    assert api.router.upstreams[0].outstanding == 0
    assert api.counted("interactive_requests_total", model="llama", result="disconnected") == 1
    assert await api.used_tokens() > 0
    assert [load.in_flight for load in await api.load()] in ([], [0])


@pytest.mark.parametrize("unread", ["http.response.start", "http.response.body"])
async def test_a_client_that_does_not_read_ends_the_call_to_the_backend(
    api: Fixture, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    monkeypatch.setattr(relayed_responses, "_MAX_SEND_SECONDS", 0.01)
    content = Pieces(chunk("He"), hangs=True)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=content)
    received = [{"type": "http.request", "body": json.dumps({**ASK, "stream": True}).encode()}]

    async def receive() -> MutableMapping[str, Any]:
        return received.pop() if received else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == unread:
            await asyncio.Event().wait()

    await api.app({**SCOPE}, receive, send)
    assert content.is_closed
    assert api.counted("interactive_requests_total", model="llama", result="disconnected") == 1


@pytest.mark.parametrize("unread", ["http.response.start", "http.response.body"])
async def test_a_client_that_does_not_read_a_whole_answer_does_not_hold_it(
    api: Fixture, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    monkeypatch.setattr(relayed_responses, "_MAX_SEND_SECONDS", 0.01)
    monkeypatch.setattr(held_calls, "MAX_HELD_PER_TENANT", 1)
    received = [{"type": "http.request", "body": json.dumps(ASK).encode()}]

    async def receive() -> MutableMapping[str, Any]:
        return received.pop() if received else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == unread:
            await asyncio.Event().wait()

    await api.app({**SCOPE}, receive, send)
    assert (await api.http.post(CHAT, json=ASK)).status_code == 200


async def test_a_tenant_has_a_limited_number_of_connections(
    api: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_PER_TENANT", 0)
    answer = await api.http.post(CHAT, json=ASK)
    assert (answer.status_code, error_of(answer).code) == (429, "resource_unavailable")
    assert api.requests == []


async def test_an_answer_in_tiny_pieces_takes_little_more_memory_than_its_bytes(api: Fixture) -> None:
    class TinyPieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield json.dumps(ANSWER).encode()
            for _ in range(pieces):
                yield bytes((32, 32))  # a new object each time
            nonlocal used
            used = tracemalloc.get_traced_memory()[0]

    pieces = used = 0
    api.handlers[A] = lambda _: httpx.Response(200, stream=TinyPieces())
    await api.http.post(CHAT, json=ASK)
    pieces = 30_000
    tracemalloc.start()
    try:
        assert (await api.http.post(CHAT, json=ASK)).json() == ANSWER
    finally:
        tracemalloc.stop()
    assert used < 10 * pieces


@asynccontextmanager
async def held_answers(api: Fixture, content: bytes, headers: dict[str, str]) -> AsyncGenerator[None]:
    """Hold two incomplete answers with this content in the process until the end of the block."""

    async def receive() -> MutableMapping[str, Any]:
        if received:
            return received.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    leave, received = asyncio.Event(), list[dict[str, object]]()
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            answer = Pieces(content, hangs=True)
            api.handlers[A] = lambda _, answer=answer: httpx.Response(200, headers=headers, stream=answer)
            received.append({"type": "http.request", "body": json.dumps({**ASK, "stream": True}).encode()})
            group.create_task(api.app({**SCOPE}, receive, send))
            async with asyncio.timeout(60):
                await answer.is_hanging.wait()
        try:
            yield
        finally:
            leave.set()


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_two_of_the_largest_answers_fit_into_a_process_and_a_third_one_is_refused(
    api: Fixture, monkeypatch: pytest.MonkeyPatch, is_stream: bool, of_all: bool
) -> None:
    monkeypatch.setattr(api.held_bytes, "limit_per_tenant", LARGEST * 9 if of_all else 2 * LARGEST + BODIES)
    monkeypatch.setattr(api.held_bytes, "limit", 2 * LARGEST + BODIES if of_all else LARGEST * 9)
    start = b'data: {"padding": "' if is_stream else b'{"padding": "'
    content = start + b"x" * (LARGEST - len(start))
    headers = EVENTS if is_stream else {}
    other, ask = {"X-Tenant": "other" if of_all else "default"}, {**ASK, "stream": is_stream}
    async with held_answers(api, content, headers):
        api.handlers[A] = lambda _: httpx.Response(200, headers=headers, stream=Pieces(content))
        answer = await api.http.post(CHAT, json=ask, headers=other)
        assert b"holds too many bytes" in answer.content
        assert answer.status_code == (200 if is_stream else 429)
        assert await api.used_tokens() > 0
    whole = json.dumps({**ANSWER, "padding": "x" * (LARGEST - 1000)}).encode() if not is_stream else content
    api.handlers[A] = lambda _: httpx.Response(200, headers=headers, stream=Pieces(whole))
    assert (await api.http.post(CHAT, json=ask, headers=other)).content == whole


async def test_events_that_were_passed_on_no_longer_count(api: Fixture) -> None:
    content = [piece for _ in range(20) for piece in (chunk("a")[:30], chunk("a")[30:] + chunk("b"))]
    room = 3 * len(chunk("a"))
    start = b'data: {"padding": "'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.held_bytes, "limit_per_tenant", 2 * LARGEST + BODIES)
        async with held_answers(api, start + b"x" * (LARGEST - len(start) - room // 2), EVENTS):
            api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=Pieces(*content))
            answer = await api.http.post(CHAT, json={**ASK, "stream": True})
    assert answer.content == b"".join(content)


async def test_an_answer_is_held_until_its_client_has_received_it_but_its_backend_is_free_before(
    api: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_PER_TENANT", 1)
    large = {**ANSWER, "padding": "x" * 300_000}
    api.handlers[A] = lambda _: httpx.Response(200, json=large)
    received, sent = [{"type": "http.request", "body": json.dumps(ASK).encode()}], list[bytes]()
    is_reading, reads = asyncio.Event(), asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        return received.pop() if received else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            is_reading.set()
            await reads.wait()
            sent.append(message["body"])

    receiving = asyncio.create_task(api.app({**SCOPE}, receive, send))
    await is_reading.wait()
    assert api.router is not None
    assert api.router.upstreams[0].outstanding == 0
    assert (await api.http.post(CHAT, json=ASK)).status_code == 429
    reads.set()
    await receiving
    assert json.loads(b"".join(sent)) == large
    assert len(sent) > 4
    assert (await api.http.post(CHAT, json=ASK)).json() == large


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/moderations"]
)
async def test_a_stream_ends_when_its_key_is_revoked(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(key_cache, "CACHE_SECONDS", 0)
    api = Fixture(auth="api_key")
    key = await create_key(api.database, "blue")
    content = Pieces(chunk("He"), hangs=True)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=content)
    asked = json.dumps({**ASK, "input": "x", "prompt": "x", "stream": True}).encode()
    received = [{"type": "http.request", "body": asked}]

    async def receive() -> MutableMapping[str, Any]:
        return received.pop() if received else await asyncio.Future()

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    headers = [*SCOPE["headers"], (b"authorization", f"Bearer {key.text}".encode())]
    scope = {**SCOPE, "path": path, "raw_path": path.encode(), "headers": headers}
    following = asyncio.create_task(api.app(scope, receive, send))
    await content.is_hanging.wait()
    await api.database.api_keys.revoke(key.prefix, datetime.now(UTC))
    async with asyncio.timeout(60):
        await following
    assert content.is_closed
