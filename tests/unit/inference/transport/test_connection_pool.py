"""Behaviour that only the pooled transport has: framing, idle connections, TLS."""

import asyncio
import gzip
import socket
import ssl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import httpx
import pytest
import trustme

from batchwright.contracts.errors import LineCode
from batchwright.inference.transport.base import BackendRequest, TargetUrl
from batchwright.inference.transport.connection_pool import (
    PooledTransport,
    TimeoutWheel,
    enable_tcp_keepalive,
)
from batchwright.inference.transport.http_connection import BackendConnection
from batchwright.rules.dispatch import retry_policy
from tests.fakes.certificates import server_context
from tests.fakes.raw_servers import HEAD, Serve, answering, ask, client, read_request, served

OK = HEAD + b"content-length: 2\r\n\r\n{}"


def counting(serve: Serve) -> tuple[list[None], Serve]:
    """Return a list and a handler of connections.

    The handler does the same as `serve`, and adds an item to the list for each connection.
    """
    connections: list[None] = []

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        await serve(reader, writer)

    return connections, counted


async def test_a_request_that_times_out_while_connecting_was_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", late)
    engine = PooledTransport(connect_seconds=60)
    request = BackendRequest(b"POST", TargetUrl.of("http://127.0.0.1:1/v1/x"), [], b"{}")
    with pytest.raises(httpx.ConnectTimeout):
        await engine.exchange(request, max_bytes=1024, seconds=0.05)
    await engine.aclose()


async def test_a_connection_that_opens_after_the_timeout_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = aiohappyeyeballs.start_connection  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def late(*args: Any, **options: Any) -> Any:
        connected: Any = await connect(*args, **options)
        over = asyncio.Event()
        TimeoutWheel().start(0.05).on_timeout = over.set  # begun after the request's own
        with suppress(asyncio.CancelledError):  # as if the connection came at the same moment
            await over.wait()
        return connected

    monkeypatch.setattr("aiohappyeyeballs.start_connection", late)
    received: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    engine = PooledTransport(connect_seconds=60)
    async with served(listen) as target, asyncio.timeout(60):
        with pytest.raises(httpx.ConnectTimeout):
            await engine.exchange(BackendRequest(b"POST", target, [], b"{}"), max_bytes=1024, seconds=0.05)
    await engine.aclose()
    assert b"".join(received) == b""


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

    assert (await ask(reset)).verdict in (retry_policy.RESPONSE_INTERRUPTED, retry_policy.INVALID_RESPONSE)


async def test_a_host_that_disappears_during_a_request_is_noticed_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def looked(connected: socket.socket) -> None:
        enable_tcp_keepalive(connected)
        seen.append(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            seen.append(connected.getsockopt(socket.IPPROTO_TCP, option))

    monkeypatch.setattr("batchwright.inference.transport.connection_pool.enable_tcp_keepalive", looked)
    assert (await ask(answering(OK))).status == 200
    is_on, first, between, count = seen
    assert is_on
    assert first + between * count <= 60


async def test_a_response_sent_byte_by_byte_is_complete() -> None:
    body = b'{"a":"b"}'
    pieces = [bytes([byte]) for byte in HEAD + b"content-length: %d\r\n\r\n" % len(body) + body]
    assert (await ask(answering(*pieces))).body == body


async def test_a_switch_to_another_protocol_is_not_an_answer() -> None:
    head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    outcome = await ask(answering(head))
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.INVALID_RESPONSE)


async def test_a_head_without_end_is_not_an_answer() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD)
        while True:
            writer.write(b"x-more: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    outcome = await ask(endless)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.INVALID_RESPONSE)
    assert "65536 bytes" in outcome.cause


async def test_a_compressed_response_is_decompressed() -> None:
    packed = gzip.compress(b'{"packed":true}')
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert (await ask(answering(head, packed))).body == b'{"packed":true}'


async def test_a_response_that_decompresses_above_the_limit_is_discarded() -> None:
    packed = gzip.compress(b"1" * 3_000_000)
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    outcome = await ask(answering(head, packed), max_response_bytes=1_000_000)
    assert outcome.code == LineCode.RESPONSE_TOO_LARGE


async def test_a_wrongly_compressed_response_is_unreadable() -> None:
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    outcome = await ask(answering(head))
    assert (outcome.verdict, outcome.code) == (retry_policy.INVALID_RESPONSE, LineCode.INVALID_RESPONSE)


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


async def test_unexpected_data_closes_an_idle_connection() -> None:
    async def read_all(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(read_all) as target:
        loop = asyncio.get_running_loop()
        place = target.origin.host, target.origin.port
        _, connection = await loop.create_connection(BackendConnection, *place)
        assert connection.is_reusable
        connection.data_received(OK)
        assert not connection.is_reusable


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


async def exchanged(engine: PooledTransport, target: TargetUrl) -> int:
    """Send a request, and return the status of the response."""
    request = BackendRequest(b"POST", target, [], b"{}")
    return (await engine.exchange(request, max_bytes=1024, seconds=60)).status


def named(target: TargetUrl) -> TargetUrl:
    """Return the same target with a host name instead of an IP address, so that a client must look the name
    up.
    """
    return TargetUrl.of(f"http://backend.example:{target.origin.port}/v1/chat/completions")


def resolving(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let every host name resolve to these addresses, in this order."""

    def getaddrinfo(_: str, port: int, **__: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in host else socket.AF_INET for host in hosts]
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))
            for family, host in zip(families, hosts, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@contextmanager
def deaf(host: str, port: int) -> Generator[None]:
    """Context manager that runs a listener with a full queue, so that attempts to connect get no answer."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):  # more than its queue holds
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield


async def test_an_address_that_does_not_answer_does_not_delay_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
    monkeypatch.setattr("random.sample", lambda found, _: [*found])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    engine = PooledTransport(connect_seconds=60)
    async with served(answering(OK)) as target:
        with deaf("127.0.0.2", target.origin.port):
            assert await exchanged(engine, named(target)) == 200
    await engine.aclose()


async def test_connections_spread_over_all_addresses_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [f"127.0.0.{number}" for number in range(1, 5)]
    resolving(monkeypatch, *hosts)
    reached: set[str] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.add(writer.get_extra_info("sockname")[0])
        await answering(HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}")(reader, writer)

    engine = PooledTransport(connect_seconds=60)
    async with served(serve, host="0.0.0.0") as target:
        for _ in range(200):  # one in 10^24 runs would miss an address
            assert await exchanged(engine, named(target)) == 200
    await engine.aclose()
    assert reached == set(hosts)


async def test_the_family_that_the_system_prefers_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "::1", "127.0.0.1", "::2", "127.0.0.2")
    tried: list[socket.AddressFamily] = []

    async def connect(addresses: list[Any], **_: Any) -> socket.socket:
        tried.extend(address[0] for address in addresses)
        raise ConnectionRefusedError

    monkeypatch.setattr("aiohappyeyeballs.start_connection", connect)
    with pytest.raises(httpx.ConnectError, match="the connection was refused"):
        await exchanged(PooledTransport(connect_seconds=60), TargetUrl.of("http://backend.example/v1/x"))
    assert tried == [socket.AF_INET6, socket.AF_INET6, socket.AF_INET, socket.AF_INET]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(113, "Connect call failed ('10.0.0.7', 80)"), "No route to host"),
        (OSError("Multiple exceptions: [Errno 113] ('10.0.0.7', 80), [Errno 111] ..."), "none of its"),
    ],
)
async def test_a_failed_connection_is_reported_without_addresses(
    monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    async def connect(*_: Any, **__: Any) -> socket.socket:
        raise error

    monkeypatch.setattr("aiohappyeyeballs.start_connection", connect)
    with pytest.raises(httpx.ConnectError, match=words) as raised:
        await exchanged(PooledTransport(connect_seconds=60), TargetUrl.of("http://127.0.0.1:1/v1/x"))
    assert "10.0.0.7" not in str(raised.value)


def test_a_connection_lost_before_the_request_sent_nothing() -> None:
    connection = BackendConnection()
    connection.connection_lost(None)
    with pytest.raises(httpx.ConnectError):
        connection.start(b"", b"", 1024, lambda _: None)


async def test_a_connection_about_to_close_sends_nothing() -> None:
    async def read_all(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        ended.set()

    received: list[bytes] = []
    ended = asyncio.Event()
    async with served(read_all) as target, asyncio.timeout(60):
        loop = asyncio.get_running_loop()
        place = target.origin.host, target.origin.port
        transport, connection = await loop.create_connection(BackendConnection, *place)
        transport.close()
        assert not connection.is_reusable
        with pytest.raises(httpx.ConnectError):
            connection.start(b"head", b"body", 1024, lambda _: None)
        await ended.wait()
    assert received == [b""]


@pytest.mark.parametrize(("oldest", "opened"), [((0.0, 0.0), 3), ((60.0, 60.0), 1)])
async def test_a_connection_of_the_maximum_age_takes_no_further_request(
    monkeypatch: pytest.MonkeyPatch, oldest: tuple[float, float], opened: int
) -> None:
    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)
            await writer.drain()

    monkeypatch.setattr("batchwright.inference.transport.connection_pool._MAX_AGE_SECONDS", oldest)
    connections, serve = counting(keep)
    engine = PooledTransport(connect_seconds=60)
    async with served(serve) as target:
        for _ in range(3):
            assert await exchanged(engine, target) == 200
        await engine.aclose()
    assert len(connections) == opened


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """TLS context of a server. This process trusts the certificate authority of the server's certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return server_context(authority.issue_cert("localhost"))


async def test_an_answer_comes_over_tls(authority: ssl.SSLContext) -> None:
    async with served(answering(OK), tls=authority) as target, client() as sender:
        outcome = await sender.send(_at(target, "localhost"), b"{}", "batch_req_1")
    assert outcome.status == 200


async def test_a_backend_that_refuses_connections_has_a_clear_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        target = TargetUrl.of(f"http://127.0.0.1:{unused.getsockname()[1]}/v1/chat/completions")
        async with client() as sender:
            outcome = await sender.send(target, b"{}", "batch_req_1")
    assert outcome.verdict == retry_policy.NOT_SENT
    assert outcome.operator_message == "The backend could not be reached: the connection was refused"


async def test_a_certificate_for_another_host_is_refused_before_anything_is_sent(
    authority: ssl.SSLContext,
) -> None:
    async with served(answering(OK), tls=authority) as target, client() as sender:
        outcome = await sender.send(_at(target, "127.0.0.1"), b"{}", "batch_req_1")
    assert outcome.verdict == retry_policy.NOT_SENT
    assert "certificate" in outcome.cause.lower()


def _at(target: TargetUrl, host: str) -> TargetUrl:
    return TargetUrl.of(f"https://{host}:{target.origin.port}/v1/chat/completions")
