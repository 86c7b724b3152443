"""The SDK's metrics, asked over one connection that is kept."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from batchwright.telemetry.exposition import LOOPBACK, SdkMetrics, exposition
from batchwright.telemetry.metrics import Metrics

GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nsdk 1\n"
BROKEN = [
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 6\r\n\r\nsdk 1\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nsdk 1\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nsdk 1\n",
    b"HTTP/1.1 200 OK\r\nx: " + 100_000 * b"x" + b"\r\ncontent-length: 6\r\n\r\nsdk 1\n",
    b"",
]


class Server:
    """Answers each question with the next of `answers`, and hangs up after those that are broken."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.connections, self.asked = [*answers], 0, asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[SdkMetrics]:
        server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        host, port = server.sockets[0].getsockname()
        sdk = SdkMetrics(f"{host}:{port}")
        try:
            yield sdk
        finally:
            await sdk.close()
            server.close()
            await asyncio.gather(*self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            answer = self.answers.pop(0)
            writer.write(answer)
            self.asked.set()
            if answer != GOOD:
                break
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_one_connection_serves_many_scrapes_also_at_once() -> None:
    server = Server(*[GOOD] * 6)
    async with server.running() as sdk:
        texts = [await sdk.text(), await sdk.text(), *await asyncio.gather(*[sdk.text() for _ in range(4)])]
    assert (texts, server.connections) == ([b"sdk 1\n"] * 6, 1)


@pytest.mark.parametrize(
    "broken", BROKEN, ids=["an error", "no length", "too short", "an endless head", "nothing"]
)
async def test_an_answer_that_cannot_be_used_is_none_and_the_next_one_is_taken(broken: bytes) -> None:
    server = Server(broken, GOOD, GOOD)
    async with server.running() as sdk:
        assert [await sdk.text() for _ in range(3)] == [b"", b"sdk 1\n", b"sdk 1\n"]
    assert server.connections == 2


async def test_a_connection_that_was_closed_meanwhile_is_opened_anew() -> None:
    server = Server(GOOD, b"", GOOD)
    async with server.running() as sdk:
        assert [await sdk.text() for _ in range(2)] == [b"sdk 1\n", b"sdk 1\n"]
    assert server.connections == 2


async def test_ours_are_shown_alone_while_nobody_serves_the_others() -> None:
    metrics = Metrics()
    async with Server().running() as sdk:
        pass
    assert await sdk.text() == b""
    assert (await exposition(metrics, sdk)).startswith(b"# HELP batchwright_")
    assert await SdkMetrics().text() == b""


async def test_the_others_follow_ours() -> None:
    async with Server(GOOD).running() as sdk:
        assert (await exposition(Metrics(), sdk)).endswith(b"\nsdk 1\n")


async def test_ours_are_those_of_the_moment_in_which_the_others_were_asked() -> None:
    """Also where that is the second time, because the connection was closed meanwhile."""
    metrics, server = Metrics(), Server(GOOD, b"", GOOD)
    asked: list[None] = []

    def look() -> None:
        asked.append(None)
        metrics.in_flight_max.set(len(asked))

    metrics.before_shown.append(look)
    async with server.running() as sdk:
        texts = [await exposition(metrics, sdk) for _ in range(2)]
    for text, times in zip(texts, (1.0, 3.0), strict=True):
        assert f"\nbatchwright_processor_max_inflight_concurrency {times}\n".encode() in text
        assert text.endswith(b"\nsdk 1\n")


async def test_a_scrape_that_was_given_up_leaves_nothing_for_the_next() -> None:
    server = Server(GOOD[:-3], GOOD)
    async with server.running() as sdk:
        asking = asyncio.create_task(sdk.text())
        await server.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await sdk.text() == b"sdk 1\n"
