"""What only the engine over our own sockets has to get right: framing, kept connections, TLS."""

import asyncio
import gzip
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from batchwright.contracts.errors import LineCode
from batchwright.inference.deadlines import Deadlines
from batchwright.inference.engine import Request, Target
from batchwright.inference.socket_engine import SocketEngine, probe
from batchwright.rules import retries
from tests.unit.sockets import HEAD, Serve, answering, ask, client, read_request, served

OK = HEAD + b"content-length: 2\r\n\r\n{}"


def counting(serve: Serve) -> tuple[list[None], Serve]:
    """`serve`, and a list that grows by one a connection."""
    connections: list[None] = []

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        await serve(reader, writer)

    return connections, counted


async def test_a_connection_that_takes_all_of_a_requests_time_is_not_asked_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def late(*args: Any, **options: Any) -> Any:
        connected = await connect(*args, **options)
        over = asyncio.Event()
        Deadlines().start(0.05).overdue = over.set  # begun after the request's own
        await over.wait()
        return connected

    monkeypatch.setattr(loop, "create_connection", late)
    engine = SocketEngine(connect_seconds=60)
    async with served(_mute) as target:
        request = Request(b"POST", target, [], b"{}")
        with pytest.raises(TimeoutError):
            await engine.exchange(request, most_bytes=1024, seconds=0.05)
    await engine.aclose()


async def _mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_an_interim_answer_is_not_the_answer() -> None:
    outcome = await ask(answering(b"HTTP/1.1 103 Early Hints\r\nx-request-id: early\r\n\r\n", OK))
    assert (outcome.status, outcome.body, outcome.backend_request_id) == (200, b"{}", "")


async def test_an_answer_without_length_ends_with_its_connection() -> None:
    outcome = await ask(answering(HEAD + b"connection: close\r\n\r\n", b'{"a":', b"2}"))
    assert (outcome.status, outcome.body) == (200, b'{"a":2}')


async def test_an_answer_without_length_whose_connection_breaks_is_broken() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"connection: close\r\n\r\n[1")
        await writer.drain()
        writer.transport.abort()

    assert (await ask(reset)).verdict in (retries.ANSWER_BROKE, retries.UNREADABLE)


async def test_a_host_that_is_gone_while_it_should_answer_is_noticed_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def looked(connected: socket.socket) -> None:
        probe(connected)
        seen.append(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            seen.append(connected.getsockopt(socket.IPPROTO_TCP, option))

    monkeypatch.setattr("batchwright.inference.socket_engine.probe", looked)
    assert (await ask(answering(OK))).status == 200
    is_on, first, between, count = seen
    assert is_on
    assert first + between * count <= 60


async def test_an_answer_in_single_bytes_comes_whole() -> None:
    body = b'{"a":"b"}'
    pieces = [bytes([byte]) for byte in HEAD + b"content-length: %d\r\n\r\n" % len(body) + body]
    assert (await ask(answering(*pieces))).body == body


async def test_a_switch_to_another_protocol_is_not_an_answer() -> None:
    head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    outcome = await ask(answering(head))
    assert (outcome.verdict, outcome.code) == (retries.ANSWER_BROKE, LineCode.INVALID_RESPONSE)


async def test_a_head_without_end_is_not_an_answer() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD)
        while True:
            writer.write(b"x-more: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    outcome = await ask(endless)
    assert (outcome.verdict, outcome.code) == (retries.ANSWER_BROKE, LineCode.INVALID_RESPONSE)
    assert "65536 bytes" in outcome.message


async def test_a_packed_answer_is_unpacked() -> None:
    packed = gzip.compress(b'{"packed":true}')
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert (await ask(answering(head, packed))).body == b'{"packed":true}'


async def test_an_answer_that_unpacks_beyond_the_limit_is_not_kept() -> None:
    packed = gzip.compress(b"1" * 3_000_000)
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    outcome = await ask(answering(head, packed), max_response_bytes=1_000_000)
    assert outcome.code == LineCode.RESPONSE_TOO_LARGE


async def test_an_answer_packed_wrongly_is_unreadable() -> None:
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    outcome = await ask(answering(head))
    assert (outcome.verdict, outcome.code) == (retries.UNREADABLE, LineCode.INVALID_RESPONSE)


async def test_a_connection_the_backend_closes_is_not_used_again() -> None:
    connections, serve = counting(answering(HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"))
    async with served(serve) as target, client() as sender:
        for _ in range(2):
            assert (await sender.send(target, b"{}", "batch_req_1")).status == 200
    assert len(connections) == 2


async def test_a_connection_with_something_behind_the_answer_is_not_used_again() -> None:
    connections, serve = counting(answering(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[666]"))
    async with served(serve) as target, client() as sender:
        answers = [await sender.send(target, b"{}", "batch_req_1") for _ in range(2)]
    assert [answer.body for answer in answers] == [b"{}", b"{}"]
    assert len(connections) == 2


async def test_requests_at_once_have_a_connection_each() -> None:
    arrived = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.release()
        await go.wait()
        writer.write(OK)
        await writer.drain()

    async with served(hold) as target, client() as sender:
        sending = [asyncio.create_task(sender.send(target, b"{}", f"batch_req_{n}")) for n in range(3)]
        for _ in sending:
            await arrived.acquire()
        go.set()
        assert [(await answer).status for answer in sending] == [200, 200, 200]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context whose authority this process trusts."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert("localhost").configure_cert(context)  # pyright: ignore[reportUnknownMemberType]
    return context


async def test_an_answer_comes_over_tls(authority: ssl.SSLContext) -> None:
    async with served(answering(OK), tls=authority) as target, client() as sender:
        outcome = await sender.send(_at(target, "localhost"), b"{}", "batch_req_1")
    assert outcome.status == 200


async def test_a_backend_that_refuses_connections_is_told_of_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        target = Target.of(f"http://127.0.0.1:{unused.getsockname()[1]}/v1/chat/completions")
        async with client() as sender:
            outcome = await sender.send(target, b"{}", "batch_req_1")
    assert outcome.verdict == retries.NOT_SENT
    assert outcome.message == "The backend could not be reached: the connection was refused"


async def test_a_certificate_for_another_host_is_refused_before_anything_is_sent(
    authority: ssl.SSLContext,
) -> None:
    async with served(answering(OK), tls=authority) as target, client() as sender:
        outcome = await sender.send(_at(target, "127.0.0.1"), b"{}", "batch_req_1")
    assert outcome.verdict == retries.NOT_SENT
    assert "certificate" in outcome.message.lower()


def _at(target: Target, host: str) -> Target:
    return Target.of(f"https://{host}:{target.origin.port}/v1/chat/completions")
