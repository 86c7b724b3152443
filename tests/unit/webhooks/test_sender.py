"""Webhooks over real sockets: endpoints that misbehave, and addresses that are not allowed."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trustme

from batchwright.rules.webhooks.ssrf_rules import Network
from batchwright.webhooks.dns_lookup import DnsLookup
from batchwright.webhooks.sender import MAX_RESPONSE_BYTES, SendResult, WebhookSender
from tests.fakes.certificates import server_context
from tests.fakes.raw_servers import Serve, read_request, served
from tests.fakes.webhook_receiver import LOOPBACK, receiving

HEADERS = {"webhook-id": "wh_1", "webhook-signature": "v1,abc"}
BODY = b'{"id":"evt_1"}'
NOT_PUBLIC = "The host of the URL was not found, or has an address that is not a public one."


@asynccontextmanager
async def sending(
    allowed: Sequence[Network] = LOOPBACK, *, timeout_seconds: float = 15.0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[WebhookSender]:
    sender = WebhookSender(allowed, timeout_seconds=timeout_seconds, tls=tls)
    try:
        yield sender
    finally:
        await sender.close()


async def result_of(serve: Serve, *, timeout_seconds: float = 15.0) -> SendResult:
    """Send a webhook to a server that handles connections with `serve`, and return the result."""
    async with served(serve) as target, sending(timeout_seconds=timeout_seconds) as sender:
        return await sender.send(f"http://127.0.0.1:{target.url.port}/hook", HEADERS, BODY)


def answers(*pieces: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return serve


def with_status(status: int, *headers: str) -> Serve:
    lines = [f"HTTP/1.1 {status} X", "content-length: 0", *headers, "", ""]
    return answers("\r\n".join(lines).encode())


async def test_the_body_and_the_headers_arrive_unchanged() -> None:
    async with receiving() as receiver, sending() as sender:
        assert await sender.send(receiver.url, HEADERS, BODY) == SendResult(200, "")
    received = receiver.received[0]
    assert received.body == BODY
    names = {name.lower(): value for name, value in received.headers.items()}
    assert names.items() >= {**HEADERS, "content-type": "application/json"}.items()
    assert names["user-agent"] == "Batchwright-Webhooks"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_is_success(status: int) -> None:
    assert await result_of(with_status(status)) == SendResult(status, "")


@pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503, 599])
async def test_any_other_status_fails(status: int) -> None:
    assert await result_of(with_status(status)) == SendResult(status, f"Status {status}.")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_fail_and_are_not_followed(status: int) -> None:
    async with receiving() as elsewhere:
        result = await result_of(with_status(status, f"location: {elsewhere.url}"))
    assert result == SendResult(status, f"Status {status}: redirects are not followed.")
    assert elsewhere.received == []


async def test_a_response_of_10_mib_fails_and_is_not_read_to_its_end() -> None:
    size = 10 * 1024 * 1024
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode()
    result = await result_of(answers(head, b"x" * size))
    assert result == SendResult(200, f"The response is larger than {MAX_RESPONSE_BYTES // 1024} KiB.")


async def test_a_packed_response_is_not_unpacked() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    assert await result_of(answers(head)) == SendResult(200, "")


async def test_a_server_that_never_answers_fails_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    result = await result_of(silent, timeout_seconds=0.2)
    assert result == SendResult(None, "No complete response within 0.2 s.")


async def test_a_response_without_an_end_fails_in_time() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx")
        await asyncio.Event().wait()

    result = await result_of(endless, timeout_seconds=0.2)
    assert result == SendResult(None, "No complete response within 0.2 s.")


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: " + b"x" * 100_000 + b"\r\n\r\n"],
)
async def test_what_is_no_http_response_fails(answer: bytes) -> None:
    result = await result_of(answers(answer))
    assert result.reason
    assert b"SSH" not in result.reason.encode()


async def test_a_response_that_is_cut_off_fails() -> None:
    result = await result_of(answers(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"))
    assert result.reason == "The connection broke before the response was complete."


async def test_a_refused_connection_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with sending() as sender:
        result = await sender.send(f"http://127.0.0.1:{port}/", HEADERS, BODY)
    assert result == SendResult(None, "The connection was refused, or the host is unreachable.")


async def test_an_unknown_host_fails() -> None:
    async with sending() as sender:
        result = await sender.send("https://nowhere.invalid/", HEADERS, BODY)
    assert result == SendResult(None, NOT_PUBLIC)


async def test_tls_is_verified() -> None:
    authority = trustme.CA()
    server = server_context(authority.issue_cert("127.0.0.1"))
    trusting = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    async with served(with_status(200), tls=server) as target:
        url = f"https://127.0.0.1:{target.url.port}/"
        async with sending() as sender, sending(tls=trusting) as trusting_sender:
            refused = await sender.send(url, HEADERS, BODY)
            accepted = await trusting_sender.send(url, HEADERS, BODY)
    assert "The TLS handshake failed" in refused.reason
    assert accepted == SendResult(200, "")


async def test_a_host_whose_address_is_not_public_is_refused_when_the_connection_is_opened() -> None:
    """When the webhook was registered, the host's name may have had another address."""
    async with receiving() as receiver, sending([]) as sender:
        url = receiver.url.replace("127.0.0.1", "localhost")
        result = await sender.send(url, HEADERS, BODY)
    assert (result, receiver.received) == (SendResult(None, NOT_PUBLIC), [])


async def test_a_literal_address_that_is_not_public_is_refused() -> None:
    async with receiving() as receiver, sending([]) as sender:
        result = await sender.send(receiver.url, HEADERS, BODY)
    assert result.reason == "The URL is not allowed: the address 127.0.0.1 is not a public one."
    assert receiver.received == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
async def test_other_ways_to_write_a_loopback_address_are_refused(host: str) -> None:
    async with receiving() as receiver, sending([]) as sender:
        result = await sender.send(receiver.url.replace("127.0.0.1", host), HEADERS, BODY)
    assert result.reason.startswith("The URL is not allowed: its host is a number")
    assert receiver.received == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy, sending() as sender:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await sender.send(receiver.url, HEADERS, BODY) == SendResult(200, "")
    assert (len(receiver.received), proxy.received) == (1, [])


async def test_a_slow_endpoint_does_not_delay_another() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with served(silent) as slow, receiving() as fast, sending() as sender:
        url = f"http://127.0.0.1:{slow.url.port}/"
        waiting = [asyncio.create_task(sender.send(url, HEADERS, BODY)) for _ in range(200)]
        results = await asyncio.gather(*(sender.send(fast.url, HEADERS, BODY) for _ in range(10)))
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert results == 10 * [SendResult(200, "")]


async def test_a_host_whose_name_cannot_be_looked_up_is_a_failed_attempt() -> None:
    async with sending() as sender:
        result = await sender.send(f"https://{'a' * 64}.example/", HEADERS, BODY)
    assert result == SendResult(None, NOT_PUBLIC)


@pytest.mark.parametrize("host", ["localhost", "nowhere.invalid"])
async def test_a_refused_host_does_not_say_if_it_exists(host: str) -> None:
    """If the message said it, a tenant could find out the names of the operator's hosts."""
    lookup = DnsLookup()
    reason = f"^its host {host} was not found, or has an address that is not a public one$"
    with pytest.raises(ValueError, match=reason):
        await lookup.check_host(host, [])
    lookup.close()


async def test_a_host_in_an_allowed_network_passes() -> None:
    lookup = DnsLookup()
    await lookup.check_host("localhost", LOOPBACK)
    lookup.close()


async def test_name_servers_that_are_silent_for_all_attempts_do_not_delay_other_lookups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: str, *rest: int) -> object:
        if host == "silent.example":
            answer.wait()
        return look_up("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lookup = DnsLookup()
    # So many hang if 50 attempts end after 15 s, and their lookups after 30 s.
    silent = [asyncio.create_task(lookup.addresses("silent.example")) for _ in range(99)]
    try:
        async with asyncio.timeout(60):
            assert await lookup.addresses("other.example")
        assert not any(task.done() for task in silent)
    finally:
        answer.set()
        await asyncio.gather(*silent)
        lookup.close()
