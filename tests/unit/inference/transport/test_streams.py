"""Responses that are read while they arrive, over real sockets."""

import asyncio

import httpx
import pytest

from batchwright.contracts.model_registry.registry_config import BackendConfig
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.client_pool import open_transport
from batchwright.inference.transport.base import TargetUrl
from tests.fakes.raw_servers import HEAD, answering, client, read_request, served
from tests.fakes.settings import load

CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
FIRST, LAST = b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize("engine", ["socket", "httpx"])
async def test_all_pieces_of_a_response_are_read(engine: str) -> None:
    async with (
        served(answering(CHUNKED, FIRST, LAST)) as url,
        client(engine) as sender,
        sender.stream(url, b"{}", "r-1") as response,
    ):
        body = b"".join([piece async for piece in response.pieces])
    assert (response.status, response.headers[b"content-type"]) == (200, b"application/json")
    assert body == b"onetwo"


async def test_a_piece_is_there_before_the_backend_has_sent_the_next_one() -> None:
    is_read = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + FIRST)
        await is_read.wait()
        writer.write(LAST)
        await writer.drain()

    async with served(serve) as url, client("httpx") as sender, sender.stream(url, b"{}", "r-1") as response:
        assert await anext(response.pieces) == b"one"
        is_read.set()
        assert await anext(response.pieces) == b"two"


async def test_other_tasks_run_while_thousands_of_chunks_are_read_at_once() -> None:
    turns = 0

    async def takes_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with (
        served(answering(CHUNKED, b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")) as url,
        client("httpx") as sender,
        sender.stream(url, b"{}", "r-1") as response,
    ):
        other, longest, before, since = asyncio.create_task(takes_turns()), 0, -1, 0
        async for _ in response.pieces:
            before, since = turns, since + 1 if turns == before else 1
            longest = max(longest, since)
        other.cancel()
    assert longest <= 200


async def test_the_connection_is_closed_if_the_rest_is_not_wanted() -> None:
    is_closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + FIRST)
        await reader.read()
        is_closed.set()

    async with served(serve) as url, client("httpx") as sender:
        async with sender.stream(url, b"{}", "r-1") as response:
            assert await anext(response.pieces) == b"one"
        await is_closed.wait()


@pytest.mark.parametrize(
    ("limits", "pieces"),
    [
        ({"first_byte_timeout": 0.05}, b""),
        ({"idle_timeout": 0.05}, CHUNKED + FIRST),
        ({"request_timeout": 0.05}, CHUNKED + FIRST),
        ({"request_timeout": 0.05}, b""),
    ],
)
async def test_the_time_limits_of_the_backend_apply(limits: dict[str, float], pieces: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(pieces)
        await reader.read()

    settings = load(http_engine="httpx")
    async with served(serve) as url:
        backend = BackendConfig.model_validate({"url": f"http://127.0.0.1:{url.origin.port}", **limits})
        sender = InferenceClient(open_transport(settings), settings, backend)
        with pytest.raises(TimeoutError):
            await _read(sender, url)
        await sender.aclose()


async def _read(sender: InferenceClient, url: TargetUrl) -> None:
    async with sender.stream(url, b"{}", "r-1") as response:
        [piece async for piece in response.pieces]


async def test_an_answer_that_ends_early_is_an_error_after_its_pieces() -> None:
    async with (
        served(answering(CHUNKED, FIRST)) as url,
        client("httpx") as sender,
        sender.stream(url, b"{}", "r-1") as response,
    ):
        assert await anext(response.pieces) == b"one"
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
            await anext(response.pieces)
