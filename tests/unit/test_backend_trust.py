"""TLS to a backend of the registry, over real sockets: whom it trusts, who it is, files that change."""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from batchwright.contracts.registry import BackendConfig
from batchwright.inference.clients import Clients
from batchwright.inference.engine import Target
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from tests.fakes.settings import load
from tests.unit.sockets import HEAD, answering, served

OK = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Pki:
    """An authority of both sides, and the files of ours."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "crt.pem", "key.pem"))
        self._server = folder / "server.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self._writes = 0

    def server(self, *, asks_clients: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(self._server)
        context.load_cert_chain(self._server)
        if asks_clients:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def issue(self, authority: trustme.CA | None = None, *, key: bool = True) -> None:
        """Our certificate, and its key or not."""
        issued = (authority or self.authority).issue_cert("us.example")
        self._write(self.cert, issued.cert_chain_pems[0].bytes())
        if key:
            self._write(self.key, issued.private_key_pem.bytes())

    def trust(self, authority: trustme.CA) -> None:
        self._write(self.ca, authority.cert_pem.bytes())

    def _write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self._writes += 1
        os.utime(path, ns=(0, self._writes))  # two writes within one tick of the clock are two


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


class Asking:
    """A process's clients, and one backend they ask."""

    def __init__(self, clients: Clients, backend: BackendConfig) -> None:
        self.clients, self.backend = clients, backend

    async def ask(self) -> Outcome:
        target = Target.of(f"{self.backend.url}/v1/chat/completions")
        return await self.clients.of(self.backend).send(target, b"{}", "batch_req_1")


@asynccontextmanager
async def asking(
    tls: ssl.SSLContext, engine: str, host: str = "localhost", **how: object
) -> AsyncGenerator[Asking]:
    """`how` is of the backend."""
    clients = Clients(load(http_engine=engine))
    async with served(answering(OK), tls=tls) as target:
        said = {"url": f"https://{host}:{target.origin.port}", **how}
        try:
            yield Asking(clients, BackendConfig.model_validate(said))
        finally:
            await clients.aclose()
            await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


@BOTH
async def test_a_backend_is_trusted_by_its_own_authority(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_without_its_authority_nothing_is_sent(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine) as backend:
        outcome = await backend.ask()
    assert outcome.verdict == retries.NOT_SENT
    assert "certificate" in outcome.message.lower()


@BOTH
async def test_its_authority_vouches_for_no_other_host(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, "127.0.0.1", tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).verdict == retries.NOT_SENT


@BOTH
async def test_any_certificate_is_taken_where_that_is_asked_for(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, "127.0.0.1", tls_insecure_skip_verify=True) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_a_backend_that_asks_who_we_are_is_shown_our_certificate(engine: str, pki: Pki) -> None:
    pki.issue()
    async with asking(pki.server(asks_clients=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_without_our_certificate_such_a_backend_answers_nothing(engine: str, pki: Pki) -> None:
    async with asking(pki.server(asks_clients=True), engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).status == 0


@BOTH
async def test_a_certificate_that_changes_is_taken_up(engine: str, pki: Pki) -> None:
    pki.issue(trustme.CA())
    async with asking(pki.server(asks_clients=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 0
        pki.issue()
        await backend.clients.renew()
        assert (await backend.ask()).status == 200


@BOTH
async def test_an_authority_that_changes_is_taken_up(engine: str, pki: Pki) -> None:
    server = pki.server()
    pki.trust(trustme.CA())
    async with asking(server, engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).verdict == retries.NOT_SENT
        pki.trust(pki.authority)
        await backend.clients.renew()
        assert (await backend.ask()).status == 200


@BOTH
async def test_an_authority_that_was_replaced_is_trusted_no_more(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).status == 200
        pki.trust(trustme.CA())
        await backend.clients.renew()
        assert (await backend.ask()).verdict == retries.NOT_SENT


@BOTH
async def test_a_certificate_whose_key_does_not_fit_leaves_the_old_pair_in_use(engine: str, pki: Pki) -> None:
    pki.issue()
    async with asking(pki.server(asks_clients=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 200
        pki.issue(key=False)
        await backend.clients.renew()
        assert (await backend.ask()).status == 200


@BOTH
async def test_a_backend_whose_certificates_come_late_can_be_asked_from_then_on(
    engine: str, pki: Pki
) -> None:
    async with asking(pki.server(asks_clients=True), engine, **_ours(pki)) as backend:
        refused = await backend.ask()
        assert (refused.verdict, str(pki.cert) in refused.message) == (retries.NO_KEY, True)
        await backend.clients.renew()
        assert (await backend.ask()).verdict == retries.NO_KEY
        pki.issue()
        await backend.clients.renew()
        assert (await backend.ask()).status == 200


def _ours(pki: Pki) -> dict[str, str]:
    return {
        "tls_ca_cert_file": str(pki.ca),
        "tls_client_cert_file": str(pki.cert),
        "tls_client_key_file": str(pki.key),
    }
