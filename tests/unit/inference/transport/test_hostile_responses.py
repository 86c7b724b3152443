"""The HTTP transports with servers that each violate HTTP in one way."""

import asyncio
import ssl
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trustme
import uvloop

from batchwright.inference.client_pool import open_transport
from batchwright.inference.transport.base import (
    BackendRequest,
    BackendResponse,
    ResponseTooLarge,
    TargetUrl,
    Transport,
)
from batchwright.inference.transport.decoding import decode_content
from tests.fakes import hostile_http as hostile
from tests.fakes.certificates import server_context
from tests.fakes.hostile_http import CASES, LIMIT, PATIENCE, Case
from tests.fakes.raw_servers import read_request, served
from tests.fakes.settings import load

ROOT = Path(__file__).parents[4]
_MOST_BYTES = 1024 * 1024  # of memory, the server's included
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Tls(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    authority = trustme.CA()
    path: Path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return Tls(server_context(authority.issue_cert("127.0.0.1")), ssl.create_default_context(cafile=path))


class Played:
    """The number of connections that a server received. It also shows if a connection was used again."""

    def __init__(self) -> None:
        self.connections = 0
        self.reused = False


@asynccontextmanager
async def playing(case: Case, tls: Tls) -> AsyncGenerator[tuple[TargetUrl, Played]]:
    """Run a server that plays `case` on its first connection and answers well on later ones."""
    played = Played()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        played.connections += 1
        if played.connections == 1:
            await case.play(reader, writer)
            if case.closes:
                return
            await read_request(reader)
            played.reused = True
        else:
            await read_request(reader)
        writer.write(hostile.GOOD)
        await writer.drain()

    async with served(serve, tls=tls.server if case.secure else None) as target:
        yield TargetUrl.of(str(target.url.copy_with(scheme="https"))) if case.secure else target, played


async def result_of(engine: Transport, target: TargetUrl, body: bytes, seconds: float) -> str:
    request = BackendRequest(b"POST", target, [], body)
    try:
        answer = await engine.exchange(request, max_bytes=LIMIT, seconds=seconds)
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return hostile.NEVER_SENT
    except httpx.RemoteProtocolError as error:
        if str(error).startswith("peer closed"):
            return hostile.CUT_OFF
        return hostile.NO_ANSWER if str(error).startswith("Server disconnected") else hostile.NOT_HTTP
    except httpx.ReadError:
        return hostile.NO_ANSWER
    except TimeoutError:
        return hostile.TOO_LATE
    except ResponseTooLarge:
        return hostile.TOO_LARGE
    return read(answer)


def read(answer: BackendResponse) -> str:
    try:
        body = decode_content(answer, LIMIT)
    except ResponseTooLarge:
        return hostile.TOO_LARGE
    except httpx.DecodingError:
        return hostile.UNREADABLE
    return f"{answer.status} {body[:2].decode()}"


def seconds_of(result: str) -> float:
    """Return the timeout of a request in seconds: short if a timeout is the expected result."""
    return PATIENCE if result == hostile.TOO_LATE else 60.0


async def check_sockets(case: Case, tls: Tls) -> None:
    engine = open_transport(load(http_engine="socket"), tls.client)
    async with playing(case, tls) as (target, played):
        assert await result_of(engine, target, case.body, seconds_of(case.result)) == case.result
        if not case.closes:
            assert await result_of(engine, target, b"{}", 60) == hostile.ANSWERED
            assert played.reused is case.kept
        await engine.aclose()


async def check_httpx(case: Case, tls: Tls) -> None:
    engine = open_transport(load(http_engine="httpx"), tls.client)
    expected = case.httpx or case.result
    async with playing(case, tls) as (target, _):
        assert await result_of(engine, target, case.body, seconds_of(expected)) == expected
        await engine.aclose()


def run(what: Coroutine[None, None, None], loop: str = "asyncio") -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(what)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_hostile_response_has_the_expected_outcome(case: Case, loop: str, tls: Tls) -> None:
    run(check_sockets(case, tls), loop)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_the_httpx_transport_differs_only_as_the_table_says(case: Case, tls: Tls) -> None:
    run(check_httpx(case, tls))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_hostile_response_uses_bounded_memory(case: Case, tls: Tls) -> None:
    tracemalloc.start()
    try:
        run(check_sockets(case, tls))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < _MOST_BYTES + 3 * len(case.body)


def test_the_decision_lists_every_difference_to_httpx() -> None:
    record = (ROOT / "docs/decisions/0071-hostile-answers.md").read_text()
    rows = [line for line in record.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {case.what} | {case.result} | {case.httpx} |" for case in CASES if case.httpx]
