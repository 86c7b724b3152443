"""Outcomes of bad responses that real servers send. The outcomes are those in the reference."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import ModelRouter
from batchwright.inference.transport.base import TargetUrl
from batchwright.inference.upstream import Backend
from batchwright.rules.dispatch.retry_policy import Budget, RetryPolicy
from docs.error_codes import ANSWER_OUTCOMES, AnswerOutcome
from tests.fakes import hostile_backends
from tests.fakes.certificates import server_context
from tests.fakes.hostile_backends import LIMIT, SKIPPED, Bad, request_body
from tests.fakes.raw_servers import Serve, answering, client, served

ROWS = {row.what: row for row in ANSWER_OUTCOMES}
CONNECTING = {what for what in ROWS if what.startswith("no connection")}


async def outcome_of(url: str, endpoint: str, sender: InferenceClient) -> Outcome:
    """Return the outcome of a request through the route of its model."""
    route = ModelRouter("m", RetryPolicy(), 5)
    config = ModelConfig(backends=[BackendConfig(url=url)])
    route.update(config, [Backend(config.backends[0].url, sender)], RetryPolicy())
    sending = route.select()
    assert sending is not None
    return await route.send(sending, sender, endpoint, request_body(endpoint), "batch_req_1")


async def answered(bad: Bad, engine: str = "socket") -> Outcome:
    settings: dict[str, object] = {"max_response_bytes": LIMIT}
    if bad.out_of_time is not None:
        settings["request_timeout_seconds"] = SKIPPED / 2
    async with served(bad.out_of_time or bad.serve) as target, client(engine, **settings) as sender:
        return await outcome_of(f"http://{target.authority.decode()}", bad.endpoint, sender)


def check(row: AnswerOutcome, outcome: Outcome) -> None:
    assert outcome.verdict.budget is row.budget
    if isinstance(row.ends, LineCode):
        assert (outcome.status, outcome.code) == (0, row.ends)
        assert outcome.message
    elif row.budget is Budget.SETTLED:
        assert (200 <= outcome.status < 300) is ("output" in row.ends)
        assert outcome.body
    else:
        assert outcome.message


def test_the_reference_lists_exactly_these_servers() -> None:
    assert set(ROWS) == set(hostile_backends.ANSWERS) | CONNECTING


@pytest.mark.parametrize("what", hostile_backends.ANSWERS)
async def test_a_bad_answer_has_the_outcome_of_the_reference(what: str) -> None:
    check(ROWS[what], await answered(hostile_backends.ANSWERS[what]))


# What httpx does with endless headers depends on its parser.
@pytest.mark.parametrize("what", [what for what in hostile_backends.ANSWERS if "endless" not in what])
async def test_httpx_gives_the_same_result(what: str) -> None:
    check(ROWS[what], await answered(hostile_backends.ANSWERS[what], "httpx"))


@pytest.mark.parametrize(
    "what",
    [
        "200 with a body of 100 MB, not announced",
        "200 with a body compressed twice that decompresses to more than the limit",
        "an endless trailer",
    ],
)
async def test_a_response_above_the_limit_is_discarded(what: str) -> None:
    tracemalloc.start()
    try:
        outcome = await answered(hostile_backends.ANSWERS[what])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert outcome.code is ROWS[what].ends
    assert peak < 4_000_000


async def test_the_error_for_a_redirect_has_the_host_and_no_secret() -> None:
    outcome = await answered(
        hostile_backends.ANSWERS["a redirect, to the same or another host: it is not followed"]
    )
    assert outcome.message == "The backend redirects (307), which is not followed."
    assert outcome.cause == "to https://elsewhere.example"


async def test_an_overlong_request_id_is_truncated() -> None:
    outcome = await answered(
        Bad(hostile_backends.response(hostile_backends.GOOD, b"x-request-id: " + b"r" * 30_000))
    )
    assert outcome.backend_request_id == "r" * 256


async def test_a_redirect_is_not_followed_to_its_own_host_either() -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n"))
        await hostile_backends.response(b"", b"location: /v2/chat/completions", status=b"308 Moved")(
            reader, writer
        )

    outcome = await answered(Bad(serve))
    assert (outcome.status, len(requests)) == (308, 1)


async def test_the_text_of_an_error_is_shown_in_the_line_and_not_in_waiting_reasons() -> None:
    outcome = await answered(Bad(hostile_backends.response(b'{"error":{"message":"no weights"}}')))
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
async def test_an_error_field_inside_a_result_does_not_make_it_a_failure(body: bytes) -> None:
    outcome = await answered(Bad(hostile_backends.response(body)))
    assert (outcome.status, outcome.body) == (200, body)


async def test_the_status_of_an_error_in_the_body_is_that_of_the_line() -> None:
    body = b'{"error":{"message":"no","code":"400"}}'
    outcome = await answered(Bad(hostile_backends.response(body)))
    assert (outcome.status, outcome.body) == (400, body)


async def unreachable(url: str, **settings: object) -> Outcome:
    async with client("socket", **settings) as sender:
        return await outcome_of(url, hostile_backends.CHAT, sender)


async def test_a_port_without_a_listening_process_has_the_outcome_of_the_reference() -> None:
    async with served(answering()) as target:
        pass
    row = ROWS["no connection: no process listens"]
    check(row, await unreachable(f"http://{target.authority.decode()}"))


async def test_a_host_without_an_address() -> None:
    check(ROWS["no connection: the host has no address"], await unreachable("http://nowhere.invalid"))


@asynccontextmanager
async def tls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, trusted: bool = True, expired: bool = False
) -> AsyncGenerator[str]:
    """Context manager that runs a server with a certificate for `name`, and yields its URL.

    The host in the URL is `localhost`.
    """
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    ended = datetime.now(UTC) - timedelta(days=1) if expired else None
    issuer = ours if trusted else theirs
    context = server_context(issuer.issue_cert(name, not_after=ended))
    async with served(answering(), tls=context) as target:
        yield f"https://localhost:{target.origin.port}"


@pytest.mark.parametrize(
    ("what", "name", "trusted", "expired"),
    [
        ("expired TLS certificate", "localhost", True, True),
        ("TLS certificate for another host", "elsewhere.example", True, False),
        ("TLS certificate of an untrusted CA", "localhost", False, False),
    ],
)
async def test_a_bad_certificate_has_the_outcome_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str, trusted: bool, expired: bool
) -> None:
    async with tls(tmp_path, monkeypatch, name, trusted=trusted, expired=expired) as url:
        outcome = await unreachable(url)
    check(ROWS[f"no connection: {what}"], outcome)
    assert "certificate" in outcome.cause.lower()


async def handshake(serve: Serve, **settings: object) -> Outcome:
    async with served(serve) as target:
        return await unreachable(f"https://{target.authority.decode()}", **settings)


async def test_https_to_a_plain_http_port_has_the_outcome_of_the_reference() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    check(ROWS["no connection: https to a port without TLS"], await handshake(plain))


async def test_a_handshake_that_never_ends_has_the_outcome_of_the_reference() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    outcome = await handshake(mute, connect_timeout_seconds=0.05)
    check(ROWS["no connection: a TLS handshake that never ends"], outcome)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "xn--a", "."])
def test_an_invalid_host_name_is_refused_in_the_configuration(host: str) -> None:
    with pytest.raises(ValueError, match="host"):
        BackendConfig(url=f"http://{host}:8000")
    assert TargetUrl.of("http://ok.example").origin.host == "ok.example"
