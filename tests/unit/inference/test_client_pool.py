"""Requests to one backend of the registry over real sockets: its key, its headers, its timeouts."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import TargetUrl
from batchwright.rules.dispatch import retry_policy
from tests.clocks import skip_time
from tests.fakes.raw_servers import HEAD, Serve, read_request, served
from tests.fakes.settings import load

OK = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
HALF = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{"
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Backend:
    """A server that answers each request, and records its head."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        self.heads.append(head.lower())
        writer.write(OK)
        await writer.drain()

    def header_values(self, name: bytes) -> list[bytes]:
        """Return the values of a header in the last request."""
        fields = [line.split(b": ", 1) for line in self.heads[-1].split(b"\r\n")[1:] if line]
        return [field[1] for field in fields if field[0] == name]


class Asking:
    """The clients of one process, and a server to which the clients send requests."""

    def __init__(self, clients: ClientPool, target: TargetUrl, engine: str) -> None:
        self.clients, self._target, self.engine = clients, target, engine

    def backend(self, **how: object) -> BackendConfig:
        origin = self._target.origin
        return BackendConfig.model_validate({"url": f"http://{origin.host}:{origin.port}", **how})

    async def ask(self, **how: object) -> Outcome:
        """Send a request to a backend that is configured with `how`. Return its outcome."""
        return await self.send_to(self.backend(**how))

    async def send_to(self, backend: BackendConfig) -> Outcome:
        return await self.clients.client_for(backend).send(self._target, b"{}", "batch_req_1")


@asynccontextmanager
async def asking(serve: Serve, engine: str = "socket", **settings: object) -> AsyncGenerator[Asking]:
    clients = ClientPool(load(http_engine=engine, **settings))
    async with served(serve) as target:
        try:
            yield Asking(clients, target, engine)
        finally:
            await clients.aclose()
            await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


async def test_a_key_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first\n")
    server = Backend()
    async with asking(server.serve, secrets_dir=tmp_path) as pool:
        await pool.ask(api_key_name="key")
        assert server.header_values(b"authorization") == [b"bearer first"]
        (tmp_path / "key").write_text("second\n")
        await pool.clients.reload_credentials()
        await pool.ask(api_key_name="key")
        assert server.header_values(b"authorization") == [b"bearer second"]


@pytest.mark.parametrize("left", [None, "", "two\nlines", "ümlaut"])
async def test_a_key_file_that_becomes_unreadable_keeps_the_last_key(
    tmp_path: Path, left: str | None
) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    server = Backend()
    async with asking(server.serve) as pool:
        assert (await pool.ask(api_key_file=str(key))).status == 200
        if left is None:
            key.unlink()
        else:
            key.write_text(left)
        await pool.clients.reload_credentials()
        assert (await pool.ask(api_key_file=str(key))).status == 200
    assert server.header_values(b"authorization") == [b"bearer first"]


async def test_a_backend_without_its_key_gets_no_request_until_the_key_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Backend()
    async with asking(server.serve, secrets_dir=tmp_path) as pool:
        with caplog.at_level(logging.ERROR):
            refused = await pool.ask(api_key_name="late")
        assert (refused.verdict, server.heads) == (retry_policy.NOT_AUTHENTICATED, [])
        assert [record.message for record in caplog.records] == ["backend is unusable"]
        (tmp_path / "late").write_text("sesame")
        await pool.clients.reload_credentials()
        assert (await pool.ask(api_key_name="late")).status == 200
    assert server.header_values(b"authorization") == [b"bearer sesame"]


async def test_a_backend_without_its_certificate_gets_no_request_and_the_outcome_says_so(
    tmp_path: Path,
) -> None:
    server = Backend()
    async with asking(server.serve) as pool:
        refused = await pool.ask(url="https://localhost", tls_ca_cert_file=str(tmp_path / "missing"))
    assert (refused.verdict, server.heads) == (retry_policy.NOT_AUTHENTICATED, [])
    assert refused.message.endswith("this worker has no usable API key or certificate for it.")
    assert str(tmp_path / "missing") in refused.cause


async def test_a_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "from-the-environment")
    server = Backend()
    async with asking(server.serve) as pool:
        await pool.ask(api_key_env="SOME_KEY")
    assert server.header_values(b"authorization") == [b"bearer from-the-environment"]


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
async def test_the_key_is_sent_in_the_header_that_the_backend_reads(
    monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setenv("SOME_KEY", "sesame")
    server = Backend()
    async with asking(server.serve) as pool:
        versioned = {"anthropic-version": "2023-06-01"}
        await pool.ask(api_key_env="SOME_KEY", api_key_header=header, headers=versioned)
    assert server.header_values(header.encode()) == [b"sesame"]
    assert server.header_values(b"anthropic-version") == [b"2023-06-01"]
    assert server.header_values(b"authorization") == []


async def test_the_global_key_is_not_sent_to_a_backend_of_the_registry() -> None:
    server = Backend()
    async with asking(server.serve, backend_api_key="ours") as pool:
        await pool.ask()
    assert server.header_values(b"authorization") == []


@pytest.mark.parametrize(("has_registry", "sent"), [(False, [b"bearer ours"]), (True, [])])
async def test_the_global_key_is_sent_to_a_gateway_of_the_settings_but_not_to_one_of_a_registry_file(
    tmp_path: Path, has_registry: bool, sent: list[bytes]
) -> None:
    server, file = Backend(), tmp_path / "registry.json"
    file.write_text('{"gateway": {"url": "http://gateway"}}')
    registry = {"registry": file} if has_registry else {}
    async with asking(server.serve, "socket", backend_api_key="ours", **registry) as pool:
        await pool.send_to(GatewayConfig(url=pool.backend().url))
    assert server.header_values(b"authorization") == sent


async def test_headers_of_a_backend_are_sent_with_every_request_and_batch_requests_are_marked() -> None:
    server = Backend()
    async with asking(server.serve, dispatch_header="x-lane") as pool:
        await pool.ask(headers={"X-Team": "red"}, send_dispatch_header=True)
        assert (server.header_values(b"x-team"), server.header_values(b"x-lane")) == (
            [b"red"],
            [b"dispatcher"],
        )
        await pool.ask()
        assert (server.header_values(b"x-team"), server.header_values(b"x-lane")) == ([], [])


@pytest.mark.parametrize(
    ("status", "is_marked", "is_adaptive", "verdict"),
    [
        (503, True, True, retry_policy.BUSY),
        (503, True, False, retry_policy.UNAVAILABLE),  # no limit would hold the line back
        (503, False, True, retry_policy.UNAVAILABLE),
        (502, True, True, retry_policy.UNAVAILABLE),
        (429, True, True, retry_policy.classify(429)),
    ],
)
@BOTH
async def test_only_a_backend_that_serves_direct_callers_first_can_be_busy_if_the_limit_adapts(
    engine: str, status: int, is_marked: bool, is_adaptive: bool, verdict: retry_policy.Classification
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 %d No\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}" % status)
        await writer.drain()

    async with asking(serve, engine, adaptive_limits=is_adaptive) as pool:
        assert (await pool.ask(send_dispatch_header=is_marked)).verdict is verdict


async def test_requests_of_batches_have_the_headers_of_batches() -> None:
    server = Backend()
    async with asking(server.serve) as pool:
        await pool.ask(headers={"X-Team": "red", "x-lane": "a"}, batch_headers={"X-Lane": "b", "X-More": "c"})
    values = [server.header_values(name) for name in (b"x-team", b"x-lane", b"x-more")]
    assert values == [[b"red"], [b"b"], [b"c"]]


async def test_a_header_is_sent_once_and_the_batch_mark_overrides_a_registered_one() -> None:
    server = Backend()
    async with asking(server.serve) as pool:
        await pool.ask(
            headers={"x-SOURCE": "me", "X-Team": "red", "x-team": "blue"}, send_dispatch_header=True
        )
    assert (server.header_values(b"x-source"), server.header_values(b"x-team")) == (
        [b"dispatcher"],
        [b"blue"],
    )


async def test_backends_that_differ_in_weight_model_and_priority_share_a_client_and_others_do_not() -> None:
    async with asking(Backend().serve) as pool:
        of = pool.clients.client_for
        assert of(pool.backend(weight=2, model="x", priority=1, in_flight=2)) is of(pool.backend())
        assert of(pool.backend(headers={"x-a": "1"})) is not of(pool.backend())
        assert of(pool.backend(request_timeout=5)) is not of(pool.backend())


class Silent:
    """A server that reads a request and sends `begin`. It sends `end` only when the test calls `finish`."""

    def __init__(self, begin: bytes = b"", end: bytes = b"") -> None:
        self._begin, self._end = begin, end
        self._has_request, self._may_end = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(self._begin)
        await writer.drain()
        self._has_request.set()
        await self._may_end.wait()
        writer.write(self._end)
        await writer.drain()

    async def begun(self, pool: Asking, task: "asyncio.Task[Outcome]") -> None:
        """Wait until the client has read `begin`.

        This is certain when the client has received a response that another server sent later.
        """
        await self._has_request.wait()
        async with asking(Backend().serve, pool.engine) as other:
            assert (await other.ask()).status == 200
        assert not task.done()

    def finish(self) -> None:
        self._may_end.set()


@BOTH
@pytest.mark.parametrize(
    ("begin", "patience", "message"),
    [
        (b"", {"first_byte_timeout": 5}, "did not begin to answer within 5 s"),
        (HALF, {"idle_timeout": 5}, "sent nothing for 5 s in the middle of its response"),
        (b"", {"request_timeout": 50, "idle_timeout": 60}, "did not answer within 50 s"),
        (HALF, {"request_timeout": 50, "first_byte_timeout": 60}, "did not answer within 50 s"),
    ],
)
async def test_each_timeout_names_the_phase_it_waited_for(
    engine: str, begin: bytes, patience: dict[str, float], message: str
) -> None:
    server = Silent(begin)
    async with asking(server.serve, engine) as pool:
        impatient = asyncio.create_task(pool.ask(**patience))
        await server.begun(pool, impatient)
        skip_time(55)
        outcome = await impatient
    assert (outcome.verdict, outcome.code) == (retry_policy.RESPONSE_TIMEOUT, LineCode.REQUEST_TIMEOUT)
    assert message in outcome.message


@BOTH
@pytest.mark.parametrize(
    ("begin", "end", "patience"),
    [(b"", OK, {"idle_timeout": 5}), (HALF, b"}", {"first_byte_timeout": 5})],
    ids=["before", "within"],
)
async def test_the_timeout_before_an_answer_and_the_one_within_it_are_separate(
    engine: str, begin: bytes, end: bytes, patience: dict[str, float]
) -> None:
    server = Silent(begin, end)
    async with asking(server.serve, engine) as pool:
        patient = asyncio.create_task(pool.ask(**patience))
        await server.begun(pool, patient)
        skip_time(55)
        await server.begun(pool, patient)
        server.finish()
        assert (await patient).status == 200


async def test_clients_of_a_process_without_batches_do_not_mark_their_requests() -> None:
    backend = BackendConfig(url="http://a", batch_headers={"X-Lane": "batch"}, send_dispatch_header=True)
    for of_batches in (True, False):
        clients = ClientPool(load(), of_batches=of_batches)
        assert clients.client_for(backend).of_batches == of_batches
        await clients.aclose()
