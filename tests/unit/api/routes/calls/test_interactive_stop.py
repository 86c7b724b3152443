"""Interactive calls of an API process that stops."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from batchwright.inference.transport.httpx_transport import HttpxTransport
from tests.fakes.api import error_of
from tests.unit.api.routes.calls.interactive_api import (
    ANSWER,
    ASK,
    CHAT,
    EVENTS,
    LAST,
    A,
    Fixture,
    Pieces,
    chunk,
)

STREAM = {**ASK, "stream": True}
HOUR = 3600.0
USAGE_TOO = {"include_usage": True}


class Paused(httpx.AsyncByteStream):
    """A response body that sends `pieces`, waits for the event `continues`, and then sends the rest."""

    def __init__(self, pieces: list[bytes], rest: list[bytes]) -> None:
        self._pieces, self._rest = pieces, rest
        self.waits, self.continues = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        self.waits.set()
        await self.continues.wait()
        for piece in self._rest:
            yield piece


async def test_a_stream_ends_normally_while_the_process_drains(api: Fixture) -> None:
    body = Paused([chunk("He")], [chunk("llo"), LAST])
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=body)
    streaming = asyncio.create_task(api.http.post(CHAT, json={**STREAM, "stream_options": USAGE_TOO}))
    await body.waits.wait()
    api.stopping.set(HOUR)
    body.continues.set()
    assert (await streaming).content == chunk("He") + chunk("llo") + LAST


async def test_a_stream_that_does_not_end_in_the_drain_time_ends_with_an_error_event(api: Fixture) -> None:
    body = Pieces(chunk("He"), chunk("llo")[:20], hangs=True)
    api.handlers[A] = lambda _: httpx.Response(200, headers=EVENTS, stream=body)
    streaming = asyncio.create_task(api.http.post(CHAT, json=STREAM))
    await body.is_hanging.wait()
    api.stopping.set()
    content = (await streaming).content
    assert content.startswith(chunk("He"))
    last = content.removeprefix(chunk("He")).strip()
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["type"], "stopping" in error["message"]) == ("server_error", True)
    assert body.is_closed
    assert api.counted("interactive_requests_total", model="llama", result="cut") == 1
    assert await api.used_tokens() > 0
    assert api.router is not None
    assert api.router.upstreams[0].outstanding == 0


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_call_that_does_not_end_in_the_drain_time_gets_a_503(api: Fixture, has_begun: bool) -> None:
    body, waits = Pieces(b'{"id":', hangs=True), asyncio.Event()

    async def hangs(_: httpx.Request) -> httpx.Response:
        if has_begun:
            return httpx.Response(200, stream=body)
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    assert api.router is not None
    transport = HttpxTransport(httpx.MockTransport(hangs), connect_seconds=1)
    api.router.upstreams[0].backend.client.set_transport(transport)
    calling = asyncio.create_task(api.http.post(CHAT, json=ASK))
    await (body.is_hanging if has_begun else waits).wait()
    api.stopping.set()
    answer = await calling
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert "stopping" in error_of(answer).message
    assert int(answer.headers["retry-after"]) > 0
    assert api.counted("interactive_requests_total", model="llama", result="503") == 1
    late = await api.http.post(CHAT, json=ASK)
    assert (late.status_code, "stopping" in error_of(late).message) == (503, True)


async def test_calls_that_begin_while_the_process_drains_are_answered(api: Fixture) -> None:
    api.stopping.set(HOUR)
    assert (await api.http.post(CHAT, json=ASK)).json() == ANSWER
