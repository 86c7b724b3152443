"""Lookups of backends' hosts: a name server that does not answer for one host delays no other host."""

import asyncio
import os
import socket
import threading

import httpx
import pytest

from batchwright.inference.transport.base import BackendRequest, TargetUrl
from batchwright.inference.transport.connection_pool import PooledTransport
from tests.fakes.raw_servers import HEAD, answering, served

OK = HEAD + b"content-length: 2\r\n\r\n{}"
# More than the threads that an event loop has for lookups.
MANY = (os.cpu_count() or 1) + 40


async def status_of(engine: PooledTransport, url: str) -> int:
    request = BackendRequest(b"POST", TargetUrl.of(url), [], b"{}")
    return (await engine.exchange(request, max_bytes=1024, seconds=60)).status


async def test_a_host_whose_name_server_is_silent_does_not_delay_connections_to_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, look_up, asked = threading.Event(), socket.getaddrinfo, list[str]()

    def getaddrinfo(host: str, *rest: object, **options: int) -> object:
        asked.append(host)
        if host == "silent.example":
            answer.wait()
        return look_up("127.0.0.1", *rest, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    impatient, patient = PooledTransport(connect_seconds=0.05), PooledTransport(connect_seconds=60)
    try:
        async with served(answering(OK)) as target:
            port = target.origin.port
            silent = f"http://silent.example:{port}/"
            failed = await asyncio.gather(
                *(status_of(impatient, silent) for _ in range(MANY)), return_exceptions=True
            )
            assert [type(error) for error in failed] == [httpx.ConnectTimeout] * MANY
            async with asyncio.timeout(60):
                assert await status_of(impatient, f"http://other.example:{port}/") == 200
            assert asked == ["silent.example", "other.example"]
            waiting = asyncio.create_task(status_of(patient, silent))
            answer.set()
            assert await waiting == 200
    finally:
        answer.set()
        await impatient.aclose()
        await patient.aclose()


async def test_a_lookup_that_raises_something_unknown_keeps_no_connection_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*args: object, **options: object) -> None:
        raise ValueError("a bug of the resolver")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    engine = PooledTransport(connect_seconds=60)
    for _ in range(2):
        with pytest.raises(ValueError, match="a bug of the resolver"):
            await status_of(engine, "http://backend.example/")
    await engine.aclose()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example"])
async def test_a_host_that_is_not_found_is_a_connect_error(host: str) -> None:
    engine = PooledTransport(connect_seconds=60)
    with pytest.raises(httpx.ConnectError):
        await status_of(engine, f"http://{host}/")
    await engine.aclose()
