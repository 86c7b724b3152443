"""Requests that are sent immediately on an idle connection, without a task that waits for the response."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import Exchange, TargetUrl
from batchwright.rules.dispatch import retry_policy
from tests.clocks import skip_time
from tests.fakes.raw_servers import HEAD, Serve, client, read_request, served

OK = HEAD + b"content-length: 2\r\n\r\n{}"
FIRST = "batch_req_first"


class Begun:
    """Requests that were started, and the outcomes reported for them."""

    def __init__(self, sender: InferenceClient, target: TargetUrl) -> None:
        self.sender, self._target = sender, target
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    def begin(self, on_complete: Callable[[Outcome], None] | None = None) -> Exchange | None:
        ended = on_complete or self.outcomes.put_nowait
        return self.sender.try_send_now(self._target, b"{}", "batch_req_1", (), ended)


@asynccontextmanager
async def warm(serve: Serve, **settings: object) -> AsyncGenerator[Begun]:
    """Context manager that runs a server to which an idle connection exists, after an earlier request.

    It yields helpers for further requests.
    """
    async with served(serve) as target, client("socket", **settings) as sender:
        assert (await sender.send(target, b"{}", FIRST)).status == 200
        yield Begun(sender, target)


def then(*pieces: bytes | None) -> Serve:
    """Return a server that answers the first request on a connection well, and later requests with `pieces`.

    Each later request gets one of `pieces`. None closes the connection.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (OK, *pieces):
            await read_request(reader)
            if piece is None:
                return
            writer.write(piece)
            await writer.drain()
        await reader.read()

    return serve


async def test_without_an_idle_connection_nothing_is_sent() -> None:
    async with served(then()) as target, client() as sender:
        begun = Begun(sender, target)
        assert begun.begin() is None
        assert begun.outcomes.empty()


async def test_on_an_idle_connection_the_request_is_sent_and_its_answer_reported() -> None:
    async with warm(then(OK)) as begun:
        assert begun.begin() is not None
        assert (await begun.outcomes.get()).verdict is retry_policy.SUCCESS


async def test_the_completion_callback_can_send_the_next_request_on_the_same_connection() -> None:
    async with warm(then(OK, OK)) as begun:

        def on_complete(outcome: Outcome) -> None:
            begun.outcomes.put_nowait(outcome)
            assert begun.begin() is not None

        begun.begin(on_complete)
        assert [(await begun.outcomes.get()).status for _ in range(2)] == [200, 200]


async def test_a_connection_in_use_is_not_idle() -> None:
    async with warm(then(b"")) as begun:
        exchange = begun.begin()
        assert exchange is not None
        assert begun.begin() is None
        exchange.cancel()


async def test_a_connection_closed_before_the_answer_is_reported_as_no_answer() -> None:
    async with warm(then(None)) as begun:
        assert begun.begin() is not None
        assert (await begun.outcomes.get()).is_unanswered


async def test_a_response_that_is_not_http_is_reported() -> None:
    async with warm(then(b"nonsense\r\n\r\n")) as begun:
        begun.begin()
        assert (await begun.outcomes.get()).verdict is retry_policy.RESPONSE_INTERRUPTED


async def test_a_wrongly_compressed_answer_is_reported_as_unreadable() -> None:
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    async with warm(then(head)) as begun:
        begun.begin()
        assert (await begun.outcomes.get()).verdict is retry_policy.INVALID_RESPONSE


async def test_a_timeout_is_reported_and_closes_the_connection() -> None:
    async with warm(then(b""), request_timeout_seconds=60) as begun:
        begun.begin()
        skip_time(120)
        assert (await begun.outcomes.get()).verdict is retry_policy.RESPONSE_TIMEOUT
        assert begun.begin() is None


async def test_an_aborted_request_closes_its_connection_and_reports_nothing() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        await reader.read()
        closed.set()

    async with warm(serve) as begun:
        exchange = begun.begin()
        assert exchange is not None
        exchange.cancel()
        await closed.wait()
        assert begun.outcomes.empty()


async def test_a_client_without_its_key_starts_no_request() -> None:
    async with warm(then(OK)) as begun:
        begun.sender.problem = "its key cannot be read"
        assert begun.begin() is None
