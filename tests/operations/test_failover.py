"""PostgreSQL fails over while a batch runs: connections are cut, and the standby takes over the address."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from batchwright.database.migrate import migrate
from batchwright.starter.embedded_stack.ports import free_port
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.clients import http_client
from tests.e2e.backend import Backend, Hold
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS
from tests.integration.temporal.clusters import cluster
from tests.operations.parts import beside, process
from tests.operations.replicas import Replicated

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class FailoverStack:
    def __init__(self, replicated: Replicated, proxy: Proxy, api: str, backend: Backend) -> None:
        self._replicated, self._proxy = replicated, proxy
        self.api, self.backend = api, backend

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.api}/v1", api_key="none", max_retries=0)

    async def fail_over(self, hold: Hold) -> None:
        """Kill the primary server, release held requests, and let the standby server take over."""
        async with self._proxy.refusing():
            await self._replicated.lose_the_primary()
            await until(self.answers_503)
            await hold.release()
            self._proxy.lead_to(self._replicated.standby.port)

    async def answers_503(self) -> bool:
        async with http_client() as http:
            return (await http.get(f"{self.api}/v1/batches", timeout=120)).status_code == 503

    async def sent_lines(self) -> list[int]:
        return [entry.requests for entry in (await self.backend.ledger()).entries]


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A directory that other users can enter. They cannot enter pytest's own directories.

    PostgreSQL may run as another user.
    """
    folder = Path(tempfile.mkdtemp(prefix="batchwright-replicated-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def replicated(open_folder: Path) -> AsyncGenerator[Replicated]:
    servers = Replicated(open_folder)
    try:
        await servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
async def failover(replicated: Replicated, tmp_path: Path) -> AsyncGenerator[FailoverStack]:
    proxy = Proxy(replicated.primary.port)
    await proxy.start()
    dsn = replicated.primary.dsn
    await migrate(dsn)
    api, metrics, simulator = (free_port() for _ in range(3))
    backend = f"http://{LOOPBACK}:{simulator}"
    async with cluster(is_set_up=True) as address:
        variables = {
            "BATCHWRIGHT_DATABASE_URL": dsn.replace(f":{replicated.primary.port}/", f":{proxy.port}/"),
            "BATCHWRIGHT_TEMPORAL_ADDRESS": address,
            "BATCHWRIGHT_STORAGE_DIR": str(tmp_path / "objects"),
            "BATCHWRIGHT_BACKENDS": f'["{backend}"]',
            "BATCHWRIGHT_METRICS_PORT": str(metrics),
            "BATCHWRIGHT_API_PORT": str(api),
            # A slice that a slow machine takes from its worker would be sent again.
            "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "300",
        }
        failover = FailoverStack(replicated, proxy, f"http://{LOOPBACK}:{api}", Backend(backend))
        parts = (
            process("simulator", "--port", str(simulator), well=f"{backend}/healthz", environment={}),
            process("worker", well=f"http://{LOOPBACK}:{metrics}/readyz", environment=variables),
            process("api", well=f"{failover.api}/readyz", environment=variables),
        )
        async with beside(parts[0]), beside(parts[1]), beside(parts[2]):
            yield failover
    await proxy.stop()


async def test_a_database_failover_during_a_batch_delays_it_and_loses_no_line(
    failover: FailoverStack,
) -> None:
    """The backend answers the first model before the failover, the second one while no database runs, and the
    third one afterwards.
    """
    lines = chat_lines(MODELS, each=300)
    backend = failover.backend
    async with (
        failover.client() as client,
        backend.hold(MODELS[1]) as during,
        backend.hold(MODELS[2]) as after,
    ):
        await backend.faults(kind="slow", seconds=1.0, rate=1.0)
        before = await submit(client, lines[:30])
        batch = await submit(client, lines)
        await settled(client, batch.id, 100)
        await during.reached()
        await after.reached()
        await failover.fail_over(during)
        await after.release()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
        assert (done.status, done.error_file_id) == ("completed", None)
        assert (await ended(client, before.id)).status == "completed"
        last = await submit(client, lines[:30])
        await check_conservation(client, await ended(client, last.id), lines[:30])
    assert set(await failover.sent_lines()) == {1}
