"""Requests that go out at once, on a connection that was kept, and that nobody awaits."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Exchange, Target
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from tests.unit.sockets import HEAD, Serve, client, read_request, served

OK = HEAD + b"content-length: 2\r\n\r\n{}"
FIRST = "batch_req_first"


class Begun:
    """What was told of each request."""

    def __init__(self, sender: InferenceClient, target: Target) -> None:
        self.sender, self._target = sender, target
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    def begin(self, told: Callable[[Outcome], None] | None = None) -> Exchange | None:
        ended = told or self.outcomes.put_nowait
        return self.sender.begin(self._target, b"{}", "batch_req_1", (), ended)


@asynccontextmanager
async def warm(serve: Serve, **settings: object) -> AsyncGenerator[Begun]:
    """A connection is kept: the first request was answered."""
    async with served(serve) as target, client("socket", **settings) as sender:
        assert (await sender.send(target, b"{}", FIRST)).status == 200
        yield Begun(sender, target)


def then(*pieces: bytes | None) -> Serve:
    """Answers a connection's first request, and the next ones by a piece each; None: it closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (OK, *pieces):
            await read_request(reader)
            if piece is None:
                return
            writer.write(piece)
            await writer.drain()
        await reader.read()

    return serve


async def test_without_a_kept_connection_nothing_goes_out() -> None:
    async with served(then()) as target, client() as sender:
        begun = Begun(sender, target)
        assert begun.begin() is None
        assert begun.outcomes.empty()


async def test_on_a_kept_connection_it_goes_out_and_its_answer_is_told() -> None:
    async with warm(then(OK)) as begun:
        assert begun.begin() is not None
        assert (await begun.outcomes.get()).verdict is retries.SUCCESS


async def test_one_may_follow_on_the_same_connection_from_within_what_is_told() -> None:
    async with warm(then(OK, OK)) as begun:

        def told(outcome: Outcome) -> None:
            begun.outcomes.put_nowait(outcome)
            assert begun.begin() is not None

        begun.begin(told)
        assert [(await begun.outcomes.get()).status for _ in range(2)] == [200, 200]


async def test_a_connection_in_use_is_no_kept_one() -> None:
    async with warm(then(b"")) as begun:
        exchange = begun.begin()
        assert exchange is not None
        assert begun.begin() is None
        exchange.call_off()


async def test_a_connection_that_ends_before_its_answer_is_told_as_no_answer() -> None:
    async with warm(then(None)) as begun:
        assert begun.begin() is not None
        assert (await begun.outcomes.get()).is_unanswered


async def test_what_is_no_http_is_told() -> None:
    async with warm(then(b"nonsense\r\n\r\n")) as begun:
        begun.begin()
        assert (await begun.outcomes.get()).verdict is retries.ANSWER_BROKE


async def test_an_answer_packed_wrongly_is_told_as_unreadable() -> None:
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    async with warm(then(head)) as begun:
        begun.begin()
        assert (await begun.outcomes.get()).verdict is retries.UNREADABLE


async def test_one_that_takes_too_long_is_told_and_closes_its_connection() -> None:
    async with warm(then(b""), request_timeout_seconds=0.5) as begun:
        begun.begin()
        assert (await begun.outcomes.get()).verdict is retries.NO_ANSWER_IN_TIME
        assert begun.begin() is None


async def test_one_that_is_called_off_closes_its_connection_and_tells_nothing() -> None:
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
        exchange.call_off()
        await closed.wait()
        assert begun.outcomes.empty()


async def test_a_client_that_cannot_ask_begins_nothing() -> None:
    async with warm(then(OK)) as begun:
        begun.sender.problem = "its key cannot be read"
        assert begun.begin() is None
