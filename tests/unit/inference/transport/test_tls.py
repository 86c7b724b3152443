"""TLS to a backend of the registry over real sockets: authorities, client certificates, changed files."""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import TargetUrl
from batchwright.rules.dispatch import retry_policy
from tests.fakes.raw_servers import HEAD, answering, served
from tests.fakes.settings import load

OK = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Pki:
    """A certificate authority for servers and clients, and the files with our certificate and key."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "crt.pem", "key.pem"))
        self._server = folder / "server.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self._writes = 0

    def server(self, *, requires_client_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(self._server)
        context.load_cert_chain(self._server)
        if requires_client_certificate:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def issue(self, authority: trustme.CA | None = None, *, key: bool = True) -> None:
        """Write a new client certificate to our file. If `key` is True, also write its private key."""
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
    """The clients of one process, and a backend to which they send requests."""

    def __init__(self, clients: ClientPool, backend: BackendConfig) -> None:
        self.clients, self.backend = clients, backend

    async def ask(self) -> Outcome:
        target = TargetUrl.of(f"{self.backend.url}/v1/chat/completions")
        return await self.clients.client_for(self.backend).send(target, b"{}", "batch_req_1")


@asynccontextmanager
async def asking(
    tls: ssl.SSLContext, engine: str, host: str = "localhost", **how: object
) -> AsyncGenerator[Asking]:
    """Context manager that runs a TLS server, and yields clients for it.

    `how` is the further configuration of the backend.
    """
    clients = ClientPool(load(http_engine=engine))
    async with served(answering(OK), tls=tls) as target:
        config = {"url": f"https://{host}:{target.origin.port}", **how}
        try:
            yield Asking(clients, BackendConfig.model_validate(config))
        finally:
            await clients.aclose()
            await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


@BOTH
async def test_a_backend_is_trusted_by_its_own_ca(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_without_its_ca_nothing_is_sent(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine) as backend:
        outcome = await backend.ask()
    assert outcome.verdict == retry_policy.NOT_SENT
    assert "certificate" in outcome.cause.lower()


@BOTH
async def test_the_ca_of_a_backend_is_not_used_for_other_hosts(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, "127.0.0.1", tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).verdict == retry_policy.NOT_SENT


@BOTH
async def test_any_certificate_is_accepted_if_verification_is_off(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, "127.0.0.1", tls_insecure_skip_verify=True) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_the_client_certificate_is_sent_to_a_backend_that_requests_it(engine: str, pki: Pki) -> None:
    pki.issue()
    async with asking(pki.server(requires_client_certificate=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 200


@BOTH
async def test_without_the_client_certificate_such_a_backend_answers_nothing(engine: str, pki: Pki) -> None:
    async with asking(
        pki.server(requires_client_certificate=True), engine, tls_ca_cert_file=str(pki.ca)
    ) as backend:
        assert (await backend.ask()).status == 0


@BOTH
async def test_a_changed_certificate_is_used(engine: str, pki: Pki) -> None:
    pki.issue(trustme.CA())
    async with asking(pki.server(requires_client_certificate=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 0
        pki.issue()
        await backend.clients.reload_credentials()
        assert (await backend.ask()).status == 200


@BOTH
async def test_a_changed_ca_is_used(engine: str, pki: Pki) -> None:
    server = pki.server()
    pki.trust(trustme.CA())
    async with asking(server, engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).verdict == retry_policy.NOT_SENT
        pki.trust(pki.authority)
        await backend.clients.reload_credentials()
        assert (await backend.ask()).status == 200


@BOTH
async def test_a_replaced_ca_is_no_longer_trusted(engine: str, pki: Pki) -> None:
    async with asking(pki.server(), engine, tls_ca_cert_file=str(pki.ca)) as backend:
        assert (await backend.ask()).status == 200
        pki.trust(trustme.CA())
        await backend.clients.reload_credentials()
        assert (await backend.ask()).verdict == retry_policy.NOT_SENT


@BOTH
async def test_a_certificate_with_a_wrong_key_keeps_the_old_pair_in_use(engine: str, pki: Pki) -> None:
    pki.issue()
    async with asking(pki.server(requires_client_certificate=True), engine, **_ours(pki)) as backend:
        assert (await backend.ask()).status == 200
        pki.issue(key=False)
        await backend.clients.reload_credentials()
        assert (await backend.ask()).status == 200


@BOTH
async def test_a_backend_whose_certificate_files_come_late_gets_requests_from_then_on(
    engine: str, pki: Pki
) -> None:
    async with asking(pki.server(requires_client_certificate=True), engine, **_ours(pki)) as backend:
        refused = await backend.ask()
        assert (refused.verdict, str(pki.cert) in refused.cause) == (retry_policy.NOT_AUTHENTICATED, True)
        await backend.clients.reload_credentials()
        assert (await backend.ask()).verdict == retry_policy.NOT_AUTHENTICATED
        pki.issue()
        await backend.clients.reload_credentials()
        assert (await backend.ask()).status == 200


def _ours(pki: Pki) -> dict[str, str]:
    return {
        "tls_ca_cert_file": str(pki.ca),
        "tls_client_cert_file": str(pki.cert),
        "tls_client_key_file": str(pki.key),
    }
