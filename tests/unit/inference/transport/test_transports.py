"""The HTTP transports with real servers that each misbehave in one way."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from batchwright.contracts.errors import LineCode
from batchwright.inference.discovery import ListingFailed
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import BackendRequest, ResponseTooLarge, TargetUrl
from batchwright.inference.transport.httpx_transport import HttpxTransport
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.results.token_usage import NO_TOKENS
from tests.clocks import skip_time
from tests.fakes.raw_servers import HEAD, Serve, answering, ask, client, read_request, served

ENGINES = ["socket", "httpx"]
MINUTE = 60.0


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_response_is_complete_with_its_request_id(engine: str) -> None:
    body = b'{"a":1}'
    outcome = await ask(answering(HEAD + b"x-request-id: r-7\r\ncontent-length: 7\r\n\r\n", body), engine)
    assert outcome == Outcome(retry_policy.SUCCESS, 200, body, "r-7", usage=NO_TOKENS)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_chunked_response_is_complete(engine: str) -> None:
    chunks = b'4\r\n{"a"\r\n3\r\n:12\r\n1\r\n}\r\n0\r\n\r\n'
    outcome = await ask(answering(HEAD + b"transfer-encoding: chunked\r\n\r\n", chunks), engine)
    assert outcome.body == b'{"a":12}'


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_request_has_the_body_and_few_headers(engine: str) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(HEAD + b"content-length: 2\r\n\r\n{}")
        await writer.drain()

    async with served(serve) as url, client(engine, backend_api_key="k") as sender:
        await sender.send(url, b'{"a" : "\xc3\xa9\\u00e9"}', "batch_req_1")
    ((head, body),) = seen
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /v1/chat/completions http/1.1"
    names = {line.split(":")[0] for line in lines[1:] if line}
    assert names == {
        "host", "content-type", "accept", "accept-encoding", "authorization", "x-request-id",
        "idempotency-key", "content-length",
    }  # fmt: skip
    assert "authorization: bearer k" in lines
    assert body == b'{"a" : "\xc3\xa9\\u00e9"}'


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_closed_port_was_never_sent_to(engine: str) -> None:
    async with served(answering()) as url:
        pass
    async with client(engine) as sender:
        outcome = await sender.send(url, b"{}", "batch_req_1")
    assert (outcome.verdict, outcome.code) == (retry_policy.NOT_SENT, LineCode.CONNECTION_ERROR)


async def test_a_host_without_address_was_never_sent_to() -> None:
    async with client() as sender:
        outcome = await sender.send(TargetUrl.of("http://nowhere.invalid/v1/x"), b"{}", "batch_req_1")
    assert outcome.verdict == retry_policy.NOT_SENT


@pytest.mark.parametrize(("seconds", "most"), [(10, 9), (600, 60)])
async def test_httpx_stops_connecting_before_the_request_times_out(seconds: float, most: float) -> None:
    waits: list[dict[str, float | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"])
        return httpx.Response(200, stream=httpx.ByteStream(b"{}"))

    engine = HttpxTransport(httpx.MockTransport(answer), connect_seconds=60)
    request = BackendRequest(b"POST", TargetUrl.of("http://backend/v1/x"), [], b"{}")
    await engine.exchange(request, max_bytes=100, seconds=seconds)
    assert waits == [{"connect": most, "read": None, "write": None, "pool": most}]


async def test_a_handshake_that_never_ends_was_never_sent() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(silent) as url, client(connect_timeout_seconds=0.05) as sender:
        outcome = await sender.send(
            TargetUrl.of(str(url.url.copy_with(scheme="https"))), b"{}", "batch_req_1"
        )
    assert outcome.verdict == retry_policy.NOT_SENT


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_connection_closed_after_the_request_was_sent(engine: str) -> None:
    outcome = await ask(answering(), engine)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.CONNECTION_ERROR)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_connection_reset_after_the_request_was_sent(engine: str) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.abort()

    outcome = await ask(reset, engine)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.CONNECTION_ERROR)


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_answer_that_is_cut_off(engine: str) -> None:
    outcome = await ask(answering(HEAD + b"content-length: 100\r\n\r\n", b'{"a":'), engine)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.CONNECTION_ERROR)


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_answer_that_is_not_http_is_an_invalid_response(engine: str) -> None:
    outcome = await ask(answering(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), engine)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_INTERRUPTED, LineCode.INVALID_RESPONSE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pieces", [(), (HEAD,), (HEAD + b"content-length: 9\r\n\r\n{",)])
async def test_a_silent_backend_is_a_timeout(engine: str, pieces: tuple[bytes, ...]) -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(*pieces)(reader, writer)
        skip_time(2 * MINUTE)
        await reader.read()

    outcome = await ask(stall, engine, request_timeout_seconds=MINUTE)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_TIMEOUT, LineCode.REQUEST_TIMEOUT)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_beyond_the_limit_is_not_read(engine: str, announced: bool) -> None:
    length = b"content-length: 5000\r\n" if announced else b"connection: close\r\n"
    outcome = await ask(answering(HEAD + length + b"\r\n", b"1" * 5000), engine, max_response_bytes=1024)
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_TOO_LARGE, LineCode.RESPONSE_TOO_LARGE)
    assert outcome.body == b""


async def test_httpx_closes_a_response_that_it_does_not_read_to_its_end() -> None:
    closed: list[bool] = []

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"1" * 5000

        async def aclose(self) -> None:
            closed.append(True)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": "5000"}, stream=Body())

    engine = HttpxTransport(httpx.MockTransport(answer), connect_seconds=60)
    request = BackendRequest(b"POST", TargetUrl.of("http://backend/v1/x"), [], b"{}")
    with pytest.raises(ResponseTooLarge):
        await engine.exchange(request, max_bytes=1024, seconds=MINUTE)
    assert closed


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_redirect_is_not_followed(engine: str) -> None:
    head = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    outcome = await ask(answering(head), engine)
    assert (outcome.status, outcome.verdict.budget) == (307, retry_policy.Budget.CAPACITY)


async def test_a_success_that_is_not_json_is_unreadable() -> None:
    outcome = await ask(answering(HEAD + b"content-length: 6\r\n\r\n<html>"))
    assert (outcome.verdict, outcome.code) == (retry_policy.INVALID_RESPONSE, LineCode.INVALID_RESPONSE)


async def test_the_retry_after_of_a_backend_is_reported() -> None:
    head = b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n"
    outcome = await ask(answering(head))
    assert (outcome.status, outcome.retry_after) == (429, 7.0)


async def test_one_connection_serves_request_after_request() -> None:
    connections = 0

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(HEAD + b"content-length: 2\r\n\r\n{}")
            await writer.drain()

    async with served(keep) as url, client() as sender:
        for _ in range(3):
            assert (await sender.send(url, b"{}", "batch_req_1")).status == 200
    assert connections == 1


async def test_a_cancelled_request_closes_its_connection() -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        assert await reader.read() == b""
        closed.set()

    async with served(wait) as url, client() as sender:
        sending = asyncio.create_task(sender.send(url, b"{}", "batch_req_1"))
        await arrived.wait()
        sending.cancel()
        await closed.wait()
        await asyncio.wait([sending])
    assert sending.cancelled()


def listing(body: bytes, code: int = 200) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {code} X\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return serve


async def test_a_backend_lists_its_models() -> None:
    serve = listing(b'{"object":"list","data":[{"id":"a","object":"model"},{"id":"org/b:1"}]}')
    async with served(serve) as url, client() as sender:
        assert await sender.models(f"http://{url.authority.decode()}") == ["a", "org/b:1"]


@pytest.mark.parametrize(
    "serve", [listing(b"{}"), listing(b"<html>"), listing(b"", 500)], ids=["no data", "html", "500"]
)
async def test_an_unreadable_model_list_is_an_error(serve: Serve) -> None:
    async with served(serve) as url, client() as sender:
        with pytest.raises(ListingFailed, match="/v1/models"):
            await sender.models(f"http://{url.authority.decode()}")
