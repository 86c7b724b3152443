"""Connections to a Temporal frontend that requires certificates or keys. The credentials change meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from batchwright.settings import Settings, load
from batchwright.temporal import TemporalConnection, TemporalUnavailable, connect, open_connection
from batchwright.temporal.namespace.namespace_checks import Namespace
from batchwright.worker.pollers import ReconnectingWorker
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.fakes.frontend import Authority, Frontend
from tests.integration.temporal.clusters import cluster
from tests.integration.temporal.echo import ECHO_QUEUE, Echo

pytestmark = pytest.mark.integration
LIMIT_SECONDS = 240


class Files:
    """Files with certificates and a key. A test replaces them, as Kubernetes replaces a mounted secret."""

    def __init__(self, folder: Path, server: Authority) -> None:
        self.ca, self.cert, self.key, self.api_key = (folder / name for name in ("ca", "crt", "key", "api"))
        self.ca.write_bytes(server.pem)

    def certify(self, authority: Authority) -> None:
        certificate, key = authority.client()
        self.cert.write_bytes(certificate)
        self.key.write_bytes(key)

    def settings(self, frontend: Frontend) -> Settings:
        certified = self.cert.exists()
        return load(
            temporal_address=frontend.address,
            temporal_tls_ca_file=self.ca,
            temporal_tls_cert_file=self.cert if certified else None,
            temporal_tls_key_file=self.key if certified else None,
            temporal_api_key_file=self.api_key if self.api_key.exists() else None,
        )


@activity.defn
async def echo(text: str) -> str:
    return text


def echo_worker(client: Client) -> Worker:
    return Worker(client, task_queue=ECHO_QUEUE, workflows=[Echo], activities=[echo])


@asynccontextmanager
async def before(address: str) -> AsyncGenerator[Proxy]:
    proxy = Proxy(int(address.rpartition(":")[2]))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def polling(settings: Settings) -> AsyncGenerator[tuple[Client, TemporalConnection]]:
    """Context manager that runs a worker which reconnects when credentials change.

    It yields the worker's client and its connection.
    """
    client, connection = await open_connection(settings)
    worker = ReconnectingWorker(echo_worker(client), connection)
    running = asyncio.create_task(worker.run())
    try:
        yield client, connection
    finally:
        await worker.shutdown()
        await running


async def echoed(client: Client) -> str:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await client.execute_workflow(Echo.run, "hello", id=uuid4().hex, task_queue=ECHO_QUEUE)


async def test_a_server_that_stops_just_before_polling_begins_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    responded = asyncio.Event()

    def hears(*_: object, **__: object) -> None:
        responded.set()

    monkeypatch.setattr("batchwright.worker.pollers.logger.warning", hears)
    async with cluster() as behind, before(behind) as proxy:
        client, connection = await open_connection(load(temporal_address=f"{LOOPBACK}:{proxy.port}"))
        worker = ReconnectingWorker(echo_worker(client), connection)
        async with proxy.refusing():
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(responded.wait(), LIMIT_SECONDS)
        assert await echoed(client) == "hello"
        await worker.shutdown()
        await running


async def test_a_worker_stopped_before_the_server_answers_ends() -> None:
    async with cluster() as behind, before(behind) as proxy:
        client, connection = await open_connection(load(temporal_address=f"{LOOPBACK}:{proxy.port}"))
        worker = ReconnectingWorker(echo_worker(client), connection)
        async with proxy.refusing(), asyncio.timeout(LIMIT_SECONDS):
            running = asyncio.create_task(worker.run())
            await worker.shutdown()
            await running
        assert running.exception() is None


async def test_a_client_certificate_and_an_api_key_authenticate(tmp_path: Path) -> None:
    server, clients = Authority(), Authority()
    files = Files(tmp_path, server)
    files.certify(clients)
    files.api_key.write_text("open-sesame\n")
    async with cluster(is_set_up=True) as behind:
        frontend = Frontend(behind, tls=server, clients=clients, api_key="open-sesame")
        async with frontend.serving():
            settings = files.settings(frontend)
            await Namespace(await connect(settings), settings).check()


async def test_a_changed_api_key_is_used_from_the_next_call_on(tmp_path: Path) -> None:
    server = Authority()
    files = Files(tmp_path, server)
    files.api_key.write_text("first")
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, api_key="first")
        async with frontend.serving(), polling(files.settings(frontend)) as (client, connection):
            assert await echoed(client) == "hello"
            frontend.api_key = "second"
            with pytest.raises(RPCError, match="unauthenticated"):
                await client.get_workflow_handle("any").describe()
            files.api_key.write_text("second")
            await connection.refresh()
            frontend.seen_keys.clear()
            assert await echoed(client) == "hello"
            assert "second" in frontend.seen_keys


async def test_changed_credentials_are_used_without_a_restart(tmp_path: Path) -> None:
    server, clients = Authority(), Authority()
    files = Files(tmp_path, server)
    files.certify(clients)
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, clients=clients)
        async with frontend.serving():
            _, connection = await open_connection(files.settings(frontend))
            replaced = asyncio.Event()
            connection.on_replace.add(replaced.set)
            running = asyncio.create_task(connection.run())
            files.certify(clients)
            async with asyncio.timeout(LIMIT_SECONDS):
                await replaced.wait()
            assert not running.done()
            running.cancel()


async def test_a_changed_certificate_makes_a_new_connection_for_worker_and_client(
    tmp_path: Path,
) -> None:
    server, before, after = Authority(), Authority(), Authority()
    files = Files(tmp_path, server)
    files.certify(before)
    async with cluster() as behind:
        old = Frontend(behind, tls=server, clients=before)
        async with old.serving():
            polled = polling(files.settings(old))
            client, connection = await polled.__aenter__()
            assert await echoed(client) == "hello"
        try:
            async with Frontend(behind, port=old.port, tls=server, clients=after).serving():
                files.certify(after)
                await connection.refresh()
                assert connection.replacements == 1
                assert await echoed(client) == "hello"
        finally:
            await polled.__aexit__(None, None, None)


async def test_a_key_that_does_not_match_its_certificate_keeps_the_old_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, clients = Authority(), Authority()
    files = Files(tmp_path, server)
    files.certify(clients)
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, clients=clients)
        async with frontend.serving():
            client, connection = await open_connection(files.settings(frontend))
            certificate, key = clients.client()
            files.cert.write_bytes(certificate)
            await connection.refresh()
            await connection.refresh()
            assert [record.message for record in caplog.records] == [
                "changed Temporal credentials cannot be used"
            ]
            assert await client.service_client.check_health()
            files.key.write_bytes(key)
            await connection.refresh()
            assert connection.replacements == 1
            assert await client.service_client.check_health()


async def test_a_certificate_that_the_server_refuses_keeps_the_old_connection(tmp_path: Path) -> None:
    server, clients = Authority(), Authority()
    files = Files(tmp_path, server)
    files.certify(clients)
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, clients=clients)
        async with frontend.serving():
            client, connection = await open_connection(files.settings(frontend))
            files.certify(Authority())
            await connection.refresh()
            assert connection.replacements == 0
            assert await client.service_client.check_health()


@pytest.mark.parametrize(
    ("tls", "clients", "api_key", "expected"),
    [
        (
            True,
            False,
            "",
            "no trusted authority signed its certificate: set BATCHWRIGHT_TEMPORAL_TLS_CA_FILE",
        ),
        (True, True, "", "no trusted authority signed its certificate"),
        (False, False, "", "it does not speak TLS: set BATCHWRIGHT_TEMPORAL_TLS=false"),
    ],
)
async def test_mismatched_tls_settings_are_reported_in_one_sentence(
    tls: bool, clients: bool, api_key: str, expected: str
) -> None:
    async with cluster() as behind:
        frontend = Frontend(
            behind,
            tls=Authority() if tls else None,
            clients=Authority() if clients else None,
            api_key=api_key,
        )
        async with frontend.serving():
            with pytest.raises(TemporalUnavailable, match=expected):
                await connect(load(temporal_address=frontend.address, temporal_tls=True))


async def test_a_server_that_requires_tls_or_a_certificate_is_distinguished_from_an_unreachable_one(
    tmp_path: Path,
) -> None:
    server, clients = Authority(), Authority()
    files = Files(tmp_path, server)
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, clients=clients)
        async with frontend.serving():
            with pytest.raises(TemporalUnavailable, match="it may require TLS"):
                await connect(load(temporal_address=frontend.address))
            with pytest.raises(TemporalUnavailable, match="it may require a client certificate"):
                await connect(files.settings(frontend))
            files.certify(Authority())
            with pytest.raises(TemporalUnavailable, match="may require a client certificate other"):
                await connect(files.settings(frontend))


async def test_a_wrong_api_key_is_reported_without_the_key(tmp_path: Path) -> None:
    server = Authority()
    files = Files(tmp_path, server)
    files.api_key.write_text("hunter2")
    async with cluster() as behind:
        frontend = Frontend(behind, tls=server, api_key="right")
        async with frontend.serving():
            with pytest.raises(TemporalUnavailable) as caught:
                await connect(files.settings(frontend))
    assert str(caught.value) == (
        f"Temporal at {frontend.address} refuses access: check BATCHWRIGHT_TEMPORAL_API_KEY_FILE."
    )
