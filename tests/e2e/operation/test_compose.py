"""A batch runs through the services of docker-compose.yml, started as processes."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml
from openai import AsyncOpenAI

from batchwright.database.driver import connect
from tests.e2e.batches import chat_lines, check_conservation, ended, submit
from tests.e2e.composed import Machine, Running
from tests.e2e.stack import MODELS
from tests.fakes.s3 import moto_server
from tests.integration.temporal.clusters import started
from tests.unit.deploy.files import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncGenerator[str]:
    """host:port of a PostgreSQL with the role and the database that docker-compose.yml expects."""
    connection = await connect(postgres_url.rpartition("/")[0] + "/postgres")
    await connection.execute("CREATE ROLE batchwright LOGIN PASSWORD 'development-only'")
    await connection.execute("CREATE DATABASE batchwright OWNER batchwright")
    yield postgres_url.partition("@")[2].partition("/")[0]
    await connection.execute("DROP DATABASE batchwright WITH (FORCE)")
    await connection.execute("DROP ROLE batchwright")
    await connection.close()


@pytest.fixture
async def hosts(postgres: str) -> AsyncGenerator[dict[str, str]]:
    """Addresses of running dependencies, by their name in docker-compose.yml. They contain no data."""
    settings = yaml.safe_load((ROOT / "deploy" / "temporal" / "dynamicconfig.yaml").read_text())
    dynamic = [
        word
        for name, [setting] in settings.items()
        for word in ("--dynamic-config-value", f"{name}={str(setting['value']).lower()}")
    ]
    async with AsyncExitStack() as servers:
        s3 = dataclasses.replace(servers.enter_context(moto_server()), bucket="batchwright")
        await s3.make_bucket()
        temporal = await servers.enter_async_context(await started(*dynamic))
        yield {
            "postgres:5432": postgres,
            "temporal:7233": temporal.client.service_client.config.target_host,
            "s3:8333": s3.url.partition("//")[2],
        }


async def test_a_batch_runs_through_the_services_and_they_stop_in_order(
    hosts: dict[str, str], tmp_path: Path
) -> None:
    with Running(Machine(hosts, tmp_path)) as services:
        assert len(services.of("worker")) == 2
        services.run_once()  # as `docker compose up` does each time
        services.run("api", "tenants", "create", "acme")
        key = services.run("api", "keys", "create", "acme")
        async with AsyncOpenAI(base_url=f"{services.api}/v1", api_key=key) as client:
            lines = chat_lines(MODELS, each=20)
            batch = await ended(client, (await submit(client, lines)).id)
            assert batch.status == "completed"
            await check_conservation(client, batch, lines)
        [api] = services.of("api")
        assert api.is_well(by_the_image=True)
        assert services.stop() == {"api": {0}, "worker": {0}, "simulator": {0}}
        assert not api.is_well()
