"""PostgreSQL fails over in mid-batch: every connection is cut, and the standby leads at the same address."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from batchwright.database.migrate import migrate
from starter.stack.ports import free_port
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS
from tests.integration.clusters import cluster
from tests.operations.parts import beside, process
from tests.operations.replicas import Replicated

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class House:
    def __init__(self, replicated: Replicated, proxy: Proxy, api: str, simulator: str) -> None:
        self._replicated, self._proxy = replicated, proxy
        self.api, self.simulator = api, simulator

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.api}/v1", api_key="none", max_retries=0)

    async def fail_over(self) -> None:
        async with self._proxy.refusing():
            await self._replicated.lose_the_primary()
            await until(self.answers_503)
            self._proxy.lead_to(self._replicated.standby.port)

    async def answers_503(self) -> bool:
        async with http_client() as http:
            return (await http.get(f"{self.api}/v1/batches", timeout=40)).status_code == 503

    async def asked(self) -> list[int]:
        async with http_client() as http:
            entries = (await http.get(f"{self.simulator}/admin/ledger")).json()["entries"]
        return [entry["asked"] for entry in entries]


@pytest.fixture
def open_folder() -> Generator[Path]:
    """Not below pytest's own: the server may run as another user, who could not enter it."""
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
async def house(replicated: Replicated, tmp_path: Path) -> AsyncGenerator[House]:
    proxy = Proxy(replicated.primary.port)
    await proxy.start()
    dsn = replicated.primary.dsn
    await migrate(dsn)
    api, metrics, simulator = (free_port() for _ in range(3))
    backend = f"http://{LOOPBACK}:{simulator}"
    slow = (f"--fault={model}:slow=1.0@1.0" for model in MODELS)
    async with cluster(is_set_up=True) as address:
        told = {
            "BATCHWRIGHT_DATABASE_URL": dsn.replace(f":{replicated.primary.port}/", f":{proxy.port}/"),
            "BATCHWRIGHT_TEMPORAL_ADDRESS": address,
            "BATCHWRIGHT_STORAGE_DIR": str(tmp_path / "objects"),
            "BATCHWRIGHT_BACKENDS": f'["{backend}"]',
            "BATCHWRIGHT_METRICS_PORT": str(metrics),
            "BATCHWRIGHT_API_PORT": str(api),
        }
        house = House(replicated, proxy, f"http://{LOOPBACK}:{api}", backend)
        parts = (
            process("simulator", "--port", str(simulator), *slow, well=f"{backend}/healthz", environment={}),
            process("worker", well=f"http://{LOOPBACK}:{metrics}/readyz", environment=told),
            process("api", well=f"{house.api}/readyz", environment=told),
        )
        async with beside(parts[0]), beside(parts[1]), beside(parts[2]):
            yield house
    await proxy.stop()


async def test_a_failover_in_mid_batch_costs_time_and_no_line(house: House) -> None:
    lines = chat_lines(MODELS, each=300)
    async with house.client() as client:
        before = await submit(client, lines[:30])
        batch = await submit(client, lines)
        await settled(client, batch.id, 100)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await house.fail_over()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
        assert (done.status, done.error_file_id) == ("completed", None)
        assert (await ended(client, before.id)).status == "completed"
        after = await submit(client, lines[:30])
        await check_conservation(client, await ended(client, after.id), lines[:30])
    assert set(await house.asked()) == {1}
