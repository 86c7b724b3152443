"""How one backend of the registry is asked, over real sockets: its key, its headers, its patience."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.registry import BackendConfig
from batchwright.inference.clients import Clients
from batchwright.inference.engine import Target
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from tests.fakes.settings import load
from tests.unit.sockets import HEAD, Serve, read_request, served

OK = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
HALF = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{"
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Backend:
    """A server that answers, and remembers the heads of what it was asked."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        self.heads.append(head.lower())
        writer.write(OK)
        await writer.drain()

    def heard(self, name: bytes) -> list[bytes]:
        """The values of a header in the last request."""
        fields = [line.split(b": ", 1) for line in self.heads[-1].split(b"\r\n")[1:] if line]
        return [field[1] for field in fields if field[0] == name]


class Asking:
    """A process's clients before one server."""

    def __init__(self, clients: Clients, target: Target) -> None:
        self.clients, self._target = clients, target

    def backend(self, **how: object) -> BackendConfig:
        origin = self._target.origin
        return BackendConfig.model_validate({"url": f"http://{origin.host}:{origin.port}", **how})

    async def ask(self, **how: object) -> Outcome:
        """As a backend of which `how` is said."""
        return await self.clients.of(self.backend(**how)).send(self._target, b"{}", "batch_req_1")


@asynccontextmanager
async def asking(serve: Serve, engine: str = "socket", **settings: object) -> AsyncGenerator[Asking]:
    clients = Clients(load(http_engine=engine, **settings))
    async with served(serve) as target:
        try:
            yield Asking(clients, target)
        finally:
            await clients.aclose()
            await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


async def test_a_key_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first\n")
    server = Backend()
    async with asking(server.serve, secrets_dir=tmp_path) as house:
        await house.ask(api_key_name="key")
        assert server.heard(b"authorization") == [b"bearer first"]
        (tmp_path / "key").write_text("second\n")
        await house.clients.renew()
        await house.ask(api_key_name="key")
        assert server.heard(b"authorization") == [b"bearer second"]


@pytest.mark.parametrize("left", [None, "", "two\nlines", "ümlaut"])
async def test_a_key_that_cannot_be_read_any_more_stays_as_it_was(tmp_path: Path, left: str | None) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    server = Backend()
    async with asking(server.serve) as house:
        assert (await house.ask(api_key_file=str(key))).status == 200
        if left is None:
            key.unlink()
        else:
            key.write_text(left)
        await house.clients.renew()
        assert (await house.ask(api_key_file=str(key))).status == 200
    assert server.heard(b"authorization") == [b"bearer first"]


async def test_without_its_key_a_backend_is_not_asked_until_the_key_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Backend()
    async with asking(server.serve, secrets_dir=tmp_path) as house:
        with caplog.at_level(logging.ERROR):
            refused = await house.ask(api_key_name="late")
        assert (refused.verdict, server.heads) == (retries.NO_KEY, [])
        assert [record.message for record in caplog.records] == ["a backend cannot be asked"]
        (tmp_path / "late").write_text("sesame")
        await house.clients.renew()
        assert (await house.ask(api_key_name="late")).status == 200
    assert server.heard(b"authorization") == [b"bearer sesame"]


async def test_a_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "from-the-environment")
    server = Backend()
    async with asking(server.serve) as house:
        await house.ask(api_key_env="SOME_KEY")
    assert server.heard(b"authorization") == [b"bearer from-the-environment"]


async def test_our_own_key_is_not_shown_to_a_backend_of_the_registry() -> None:
    server = Backend()
    async with asking(server.serve, backend_api_key="ours") as house:
        await house.ask()
    assert server.heard(b"authorization") == []


async def test_headers_of_a_backend_come_with_every_request_and_dispatched_ones_are_marked() -> None:
    server = Backend()
    async with asking(server.serve, dispatch_header="x-lane", dispatch_value="batch") as house:
        await house.ask(headers={"X-Team": "red"}, dispatched=True)
        assert (server.heard(b"x-team"), server.heard(b"x-lane")) == ([b"red"], [b"batch"])
        await house.ask()
        assert (server.heard(b"x-team"), server.heard(b"x-lane")) == ([], [])


async def test_a_header_is_sent_once_and_the_mark_stands_before_one_registered_under_its_name() -> None:
    server = Backend()
    async with asking(server.serve) as house:
        await house.ask(headers={"x-SOURCE": "me", "X-Team": "red", "x-team": "blue"}, dispatched=True)
    assert (server.heard(b"x-source"), server.heard(b"x-team")) == ([b"dispatcher"], [b"blue"])


async def test_backends_that_differ_in_weight_and_model_share_a_client_and_others_do_not() -> None:
    async with asking(Backend().serve) as house:
        of = house.clients.of
        assert of(house.backend(weight=2, model="x")) is of(house.backend())
        assert of(house.backend(headers={"x-a": "1"})) is not of(house.backend())
        assert of(house.backend(request_timeout=5)) is not of(house.backend())


async def _mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes a request, and never answers."""
    await read_request(reader)
    await reader.read()


async def _half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins an answer, and never ends it."""
    await read_request(reader)
    writer.write(HALF)
    await reader.read()


@BOTH
@pytest.mark.parametrize(
    ("serve", "patience", "said"),
    [
        (_mute, {"first_byte_timeout": 0.05}, "did not begin to answer within 0.05 s"),
        (_half, {"idle_timeout": 0.05}, "fell silent in the middle of its answer for 0.05 s"),
        (_mute, {"request_timeout": 0.5, "idle_timeout": 60}, "did not answer within 0.5 s"),
        (_half, {"request_timeout": 0.5, "first_byte_timeout": 60}, "did not answer within 0.5 s"),
    ],
)
async def test_each_patience_says_what_it_waited_for(
    engine: str, serve: Serve, patience: dict[str, float], said: str
) -> None:
    async with asking(serve, engine) as house:
        outcome = await house.ask(**patience)
    assert (outcome.verdict, outcome.code) == (retries.NO_ANSWER_IN_TIME, LineCode.REQUEST_TIMEOUT)
    assert said in outcome.message


@BOTH
async def test_silence_before_the_answer_does_not_count_as_silence_within_it(engine: str) -> None:
    async with asking(_SecondGivesUp(b"", OK).serve, engine) as house:
        patient = asyncio.create_task(house.ask(idle_timeout=0.05))
        assert (await house.ask(first_byte_timeout=0.3)).status == 0
        assert (await patient).status == 200


@BOTH
async def test_silence_within_the_answer_does_not_count_as_silence_before_it(engine: str) -> None:
    async with asking(_SecondGivesUp(HALF, b"}").serve, engine) as house:
        patient = asyncio.create_task(house.ask(first_byte_timeout=1))
        assert (await house.ask(idle_timeout=1.2)).status == 0
        assert (await patient).status == 200


class _SecondGivesUp:
    """Begins two answers with `begin`; once one was given up, the other gets its `end`."""

    def __init__(self, begin: bytes, end: bytes) -> None:
        self._begin, self._end = begin, end
        self._given_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(self._begin)
        closed = asyncio.create_task(reader.read())
        other = asyncio.create_task(self._given_up.wait())
        await asyncio.wait([closed, other], return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        other.cancel()
        self._given_up.set()
        writer.write(self._end)
        await writer.drain()
