"""The SDK's metrics are read over one keep-alive connection."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from batchwright.telemetry.exposition import LOOPBACK, SdkMetricsClient, render_metrics
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
    """A server that answers each request with the next one of `answers`. It closes the connection after a
    broken answer.
    """

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.connections, self.was_requested = [*answers], 0, asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[SdkMetricsClient]:
        server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        host, port = server.sockets[0].getsockname()
        sdk = SdkMetricsClient(f"{host}:{port}")
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
            self.was_requested.set()
            if answer != GOOD:
                break
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_one_connection_serves_many_scrapes_also_at_once() -> None:
    server = Server(*[GOOD] * 6)
    async with server.running() as sdk:
        texts = [
            await sdk.fetch(),
            await sdk.fetch(),
            *await asyncio.gather(*[sdk.fetch() for _ in range(4)]),
        ]
    assert (texts, server.connections) == ([b"sdk 1\n"] * 6, 1)


@pytest.mark.parametrize(
    "broken", BROKEN, ids=["an error", "no length", "too short", "an endless head", "nothing"]
)
async def test_an_unusable_response_is_skipped_and_the_next_one_used(broken: bytes) -> None:
    server = Server(broken, GOOD, GOOD)
    async with server.running() as sdk:
        assert [await sdk.fetch() for _ in range(3)] == [b"", b"sdk 1\n", b"sdk 1\n"]
    assert server.connections == 2


async def test_a_closed_connection_is_opened_again() -> None:
    server = Server(GOOD, b"", GOOD)
    async with server.running() as sdk:
        assert [await sdk.fetch() for _ in range(2)] == [b"sdk 1\n", b"sdk 1\n"]
    assert server.connections == 2


async def test_own_metrics_are_shown_while_sdk_metrics_are_unavailable() -> None:
    metrics = Metrics()
    async with Server().running() as sdk:
        pass
    assert await sdk.fetch() == b""
    assert (await render_metrics(metrics, sdk)).startswith(b"# HELP batchwright_")
    assert await SdkMetricsClient().fetch() == b""


async def test_sdk_metrics_follow_own_metrics() -> None:
    async with Server(GOOD).running() as sdk:
        assert (await render_metrics(Metrics(), sdk)).endswith(b"\nsdk 1\n")


async def test_own_metrics_have_the_values_of_the_time_of_the_sdk_request() -> None:
    """The request may be sent a second time because the server has closed the connection. Then the time of
    the second request counts.
    """
    metrics, server = Metrics(), Server(GOOD, b"", GOOD)
    scrapes: list[None] = []

    def look() -> None:
        scrapes.append(None)
        metrics.in_flight_max.set(len(scrapes))

    metrics.before_scrape.append(look)
    async with server.running() as sdk:
        texts = [await render_metrics(metrics, sdk) for _ in range(2)]
    for text, times in zip(texts, (1.0, 3.0), strict=True):
        assert f"\nbatchwright_processor_max_inflight_concurrency {times}\n".encode() in text
        assert text.endswith(b"\nsdk 1\n")


async def test_an_aborted_scrape_leaves_nothing_for_the_next() -> None:
    server = Server(GOOD[:-3], GOOD)
    async with server.running() as sdk:
        asking = asyncio.create_task(sdk.fetch())
        await server.was_requested.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await sdk.fetch() == b"sdk 1\n"
