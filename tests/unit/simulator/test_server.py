"""The simulator's HTTP server: requests and responses, compared byte by byte."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from batchwright.simulator.exchange import HttpExchange, HttpResponse
from batchwright.simulator.server import Handler
from tests.unit.simulator.simulators import echo, serving, until


@asynccontextmanager
async def connected(handler: Handler) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with serving(handler) as url:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            yield reader, writer
        finally:
            writer.close()


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /x HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(size)


async def test_a_request_in_single_bytes_is_one_request() -> None:
    async with connected(echo) as (reader, writer):
        for byte in post(b'{"a":1}'):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await answer_of(reader) == b'POST /x {"a":1}'


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    held: list[HttpExchange] = []
    async with connected(held.append) as (reader, writer):
        writer.write(post(b"1") + post(b"2"))
        await until(lambda: bool(held))
        assert [exchange.request.body for exchange in held] == [b"1"]
        echo(held[0])
        assert await answer_of(reader) == b"POST /x 1"
        echo(held[1])
        assert await answer_of(reader) == b"POST /x 2"


async def test_a_chunked_body_is_put_together() -> None:
    async with connected(echo) as (reader, writer):
        head = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert await answer_of(reader) == b"POST /x abcde"


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(b"POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert await answer_of(reader) == b"POST /x ok"


@pytest.mark.parametrize("request_bytes", [b"NOT HTTP\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
async def test_input_that_is_not_http_is_refused_and_closed(request_bytes: bytes) -> None:
    async with connected(echo) as (reader, writer):
        writer.write(request_bytes)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_closes_gets_its_answer_and_the_end() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(post(b"1", "Connection: close"))
        answer = await reader.read()
        assert b"connection: close" in answer
        assert answer.endswith(b"POST /x 1")


async def test_a_cut_answer_ends_in_the_middle_of_its_body() -> None:
    async with connected(lambda exchange: exchange.cut(HttpResponse(200, b"0123456789"))) as (reader, writer):
        writer.write(post(b"1"))
        answer = await reader.read()
        assert b"content-length: 10\r\n" in answer
        assert answer.endswith(b"\r\n\r\n01234")


async def test_an_abort_resets_the_connection() -> None:
    async with connected(lambda exchange: exchange.abort()) as (reader, writer):
        writer.write(post(b"1"))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_client_that_hangs_up_is_noticed() -> None:
    gone = asyncio.Event()

    def hold(exchange: HttpExchange) -> None:
        exchange.on_disconnect = gone.set
        writer.close()

    async with connected(hold) as (_, writer):
        writer.write(post(b"1"))
        await asyncio.wait_for(gone.wait(), 120)
