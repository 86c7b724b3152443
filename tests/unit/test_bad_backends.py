"""What the reference says of each bad answer, against servers that give it."""

import asyncio
import ssl
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from batchwright.contracts.errors import LineCode
from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Target
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Backend, Route
from batchwright.rules.retries import Budget, Retries
from docs.errors import ANSWERS, Answer
from tests.fakes import hostile
from tests.fakes.hostile import LIMIT, Bad, asked
from tests.unit.sockets import Serve, answering, client, served

ROWS = {row.what: row for row in ANSWERS}
CONNECTING = {what for what in ROWS if what.startswith("no connection")}


async def outcome_of(url: str, endpoint: str, sender: InferenceClient) -> Outcome:
    """As a line gets it: through its model's route."""
    route = Route("m", Retries(), 5)
    config = ModelConfig(backends=[BackendConfig(url=url)])
    route.follow(config, [Backend(config.backends[0].url, sender)], Retries())
    sending = route.begin()
    assert sending is not None
    return await route.send(sending, sender, endpoint, asked(endpoint), "batch_req_1")


async def answered(bad: Bad, engine: str = "socket") -> Outcome:
    settings: dict[str, object] = {"max_response_bytes": LIMIT, **bad.settings}
    async with served(bad.serve) as target, client(engine, **settings) as sender:
        return await outcome_of(f"http://{target.authority.decode()}", bad.endpoint, sender)


def check(row: Answer, outcome: Outcome) -> None:
    assert outcome.verdict.budget is row.budget
    if isinstance(row.ends, LineCode):
        assert (outcome.status, outcome.code) == (0, row.ends)
        assert outcome.message
    elif row.budget is Budget.SETTLED:
        assert (200 <= outcome.status < 300) is ("output" in row.ends)
        assert outcome.body
    else:
        assert outcome.message


def test_the_reference_tells_of_each_of_these_servers_and_no_other() -> None:
    assert set(ROWS) == set(hostile.ANSWERS) | CONNECTING


@pytest.mark.parametrize("what", hostile.ANSWERS)
async def test_a_bad_answer_is_what_the_reference_says(what: str) -> None:
    check(ROWS[what], await answered(hostile.ANSWERS[what]))


# How httpx's own engine takes endless heads is its parser's business.
@pytest.mark.parametrize("what", [what for what in hostile.ANSWERS if "without end" not in what])
async def test_the_other_engine_says_the_same(what: str) -> None:
    check(ROWS[what], await answered(hostile.ANSWERS[what], "httpx"))


@pytest.mark.parametrize(
    "what",
    [
        "200 with 100 MB, not announced",
        "200 with a body packed twice that unpacks beyond the limit",
        "a trailer without end",
    ],
)
async def test_nothing_is_kept_of_an_answer_beyond_the_limit(what: str) -> None:
    tracemalloc.start()
    try:
        outcome = await answered(hostile.ANSWERS[what])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outcome.code is ROWS[what].ends
    assert peak < 4_000_000


async def test_a_redirect_tells_the_host_and_nothing_that_may_be_secret() -> None:
    outcome = await answered(hostile.ANSWERS["a redirect, to its own or another host: none is followed"])
    assert outcome.message == (
        "The backend redirects to https://elsewhere.example (307), which is not followed."
    )


async def test_of_a_request_id_without_measure_only_the_beginning_is_kept() -> None:
    outcome = await answered(Bad(hostile.said(hostile.GOOD, b"x-request-id: " + b"r" * 30_000)))
    assert outcome.backend_request_id == "r" * 256


async def test_a_redirect_is_not_followed_to_its_own_host_either() -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n"))
        await hostile.said(b"", b"location: /v2/chat/completions", status=b"308 Moved")(reader, writer)

    outcome = await answered(Bad(serve))
    assert (outcome.status, len(requests)) == (308, 1)


async def test_what_an_error_in_the_body_says_is_for_the_line_and_not_for_those_who_wait() -> None:
    outcome = await answered(Bad(hostile.said(b'{"error":{"message":"no weights"}}')))
    assert (outcome.message, outcome.detail) == (
        "The backend answered 200 with an error in its body.",
        "no weights",
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"object":"response","status":"failed","error":{"code":"server_error"},"output":[]}',
        b'{"id":"video_1","object":"video","error":{"code":"429"}}',
        b'{"choices":[{"message":{"content":"{\\"error\\":{\\"code\\":429}}"}}]}',
        b'{"error":null,"text":"t"}',
    ],
    ids=["failed response", "failed video", "quoted in a text", "null"],
)
async def test_an_error_that_is_a_results_own_leaves_it_a_result(body: bytes) -> None:
    outcome = await answered(Bad(hostile.said(body)))
    assert (outcome.status, outcome.body) == (200, body)


async def test_the_status_of_an_error_in_the_body_is_that_of_the_line() -> None:
    body = b'{"error":{"message":"no","code":"400"}}'
    outcome = await answered(Bad(hostile.said(body)))
    assert (outcome.status, outcome.body) == (400, body)


async def unreachable(url: str, **settings: object) -> Outcome:
    async with client("socket", **settings) as sender:
        return await outcome_of(url, hostile.CHAT, sender)


async def test_a_port_where_nobody_listens() -> None:
    async with served(answering()) as target:
        pass
    row = ROWS["no connection: nobody listens"]
    check(row, await unreachable(f"http://{target.authority.decode()}"))


async def test_a_host_without_an_address() -> None:
    check(ROWS["no connection: the host has no address"], await unreachable("http://nowhere.invalid"))


@asynccontextmanager
async def tls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, trusted: bool = True, expired: bool = False
) -> AsyncGenerator[str]:
    """A server with a certificate for `name`; the URL of this machine, by its name."""
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ended = datetime.now(UTC) - timedelta(days=1) if expired else None
    issuer = ours if trusted else theirs
    issuer.issue_cert(name, not_after=ended).configure_cert(context)  # pyright: ignore[reportUnknownMemberType]
    async with served(answering(), tls=context) as target:
        yield f"https://localhost:{target.origin.port}"


@pytest.mark.parametrize(
    ("what", "name", "trusted", "expired"),
    [
        ("TLS with a certificate that expired", "localhost", True, True),
        ("TLS with a certificate for another host", "elsewhere.example", True, False),
        ("TLS by an authority that is not trusted", "localhost", False, False),
    ],
)
async def test_a_certificate_that_is_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str, trusted: bool, expired: bool
) -> None:
    async with tls(tmp_path, monkeypatch, name, trusted=trusted, expired=expired) as url:
        outcome = await unreachable(url)
    check(ROWS[f"no connection: {what}"], outcome)
    assert "certificate" in outcome.message.lower()


async def handshake(serve: Serve, **settings: object) -> Outcome:
    async with served(serve) as target:
        return await unreachable(f"https://{target.authority.decode()}", **settings)


async def test_https_to_a_port_that_speaks_plain_http() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    check(ROWS["no connection: https to a port without TLS"], await handshake(plain))


async def test_a_handshake_that_never_ends() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    outcome = await handshake(mute, connect_timeout_seconds=0.05)
    check(ROWS["no connection: a TLS handshake that never ends"], outcome)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "xn--a", "."])
def test_a_host_that_nobody_can_look_up_is_refused_before_it_is_asked(host: str) -> None:
    with pytest.raises(ValueError, match="host"):
        BackendConfig(url=f"http://{host}:8000")
    assert Target.of("http://ok.example").origin.host == "ok.example"
