"""Two releases of the API run at the same time. Both use the tables of the newer release."""

import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from batchwright.starter.embedded_stack.ports import free_port
from tests.e2e.backend import Backend
from tests.e2e.batches import CHAT, chat_line, chat_lines, check_conservation, ended, submit, until
from tests.e2e.stack import MODELS
from tests.integration.temporal.clusters import cluster
from tests.operations.parts import process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
# What a release may do to tables that an older one still uses: every one of them grows.
_GROWTH = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'migrations' LOOP
        EXECUTE format('ALTER TABLE %I ADD COLUMN newer text NOT NULL DEFAULT ''newer''', name);
    END LOOP;
END $$;
CREATE TABLE newer (id text PRIMARY KEY);
"""


@dataclass
class TwoReleases:
    """A stack of the older release. A newer API can be started beside it."""

    environment: dict[str, str]
    newer_code: Path
    old: str
    backend: Backend

    @contextmanager
    def newer(self) -> Generator[str]:
        migrate = [sys.executable, "-P", "-m", "batchwright.starter", "migrate"]
        variables = {**self.environment, "PYTHONPATH": f"{self.newer_code}:{ROOT}", "PATH": "/usr/bin"}
        output = subprocess.run(migrate, env=variables, check=True, capture_output=True, text=True).stdout
        assert "9000_newer.sql" in output
        with api(self.environment, self.newer_code) as url:
            yield url


@contextmanager
def api(environment: dict[str, str], code: Path | None = None) -> Generator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {**environment, "BATCHWRIGHT_API_PORT": str(port)}
    with process("api", well=f"{url}/readyz", environment=variables, code=code):
        yield url


@pytest.fixture
def newer_code(tmp_path: Path) -> Path:
    """A copy of our code with one more migration."""
    folder = tmp_path / "newer"
    shutil.copytree(ROOT / "batchwright", folder / "batchwright")
    (folder / "batchwright" / "database" / "migrations" / "9000_newer.sql").write_text(_GROWTH)
    return folder


@pytest.fixture
async def releases(tmp_path: Path, database_url: str, newer_code: Path) -> AsyncGenerator[TwoReleases]:
    simulator, metrics = free_port(), free_port()
    async with cluster(is_set_up=True) as address:
        environment = {
            "BATCHWRIGHT_DATABASE_URL": database_url,
            "BATCHWRIGHT_TEMPORAL_ADDRESS": address,
            "BATCHWRIGHT_STORAGE_DIR": str(tmp_path / "objects"),
            "BATCHWRIGHT_BACKENDS": f'["http://127.0.0.1:{simulator}"]',
            "BATCHWRIGHT_METRICS_PORT": str(metrics),
            "BATCHWRIGHT_CANCEL_GRACE_SECONDS": "1",
        }
        backend = process(
            *("simulator", "--port", str(simulator)),
            well=f"http://127.0.0.1:{simulator}/healthz",
            environment={},
        )
        worker = process("worker", well=f"http://127.0.0.1:{metrics}/readyz", environment=environment)
        with backend, worker, api(environment) as old:
            yield TwoReleases(environment, newer_code, old, Backend(f"http://127.0.0.1:{simulator}"))


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_an_older_api_and_a_newer_one_serve_the_same_batches_side_by_side(
    releases: TwoReleases,
) -> None:
    lines = chat_lines(MODELS, each=30)
    async with client(releases.old) as old:
        before = await submit(old, lines)  # its statements are prepared before the tables grow
        with releases.newer() as url:
            async with client(url) as new:
                batches = {old: before, new: await submit(new, lines)}
                for ours, theirs in ((old, new), (new, old)):
                    done = await ended(theirs, batches[ours].id)
                    assert done.status == "completed"
                    await check_conservation(theirs, done, lines)
                    assert await ours.batches.retrieve(done.id) == done
                assert [each.id async for each in old.batches.list()] == [
                    each.id async for each in new.batches.list()
                ]


async def is_in_progress(client: AsyncOpenAI, batch: Batch) -> bool:
    return (await client.batches.retrieve(batch.id)).status == "in_progress"


async def test_a_batch_created_by_one_release_is_controlled_by_the_other(releases: TwoReleases) -> None:
    held = [chat_line(f"line-{number}", MODELS[0]) for number in range(200)]
    await releases.backend.faults(kind="hang", rate=1.0)
    with releases.newer() as url:
        async with client(releases.old) as old, client(url) as new:
            for ours, theirs in ((old, new), (new, old)):
                batch = await submit(ours, held)
                await until(lambda batch=batch, there=theirs: is_in_progress(there, batch))
                await theirs.post(f"/batches/{batch.id}/x/pause", cast_to=object)
                await ours.batches.cancel(batch.id)
                done = await ended(theirs, batch.id)
                assert done.status == "cancelled"
                await check_conservation(theirs, done, held)
                file = await ours.files.retrieve(batch.input_file_id)
                assert (await theirs.files.delete(file.id)).deleted
                copy = await theirs.files.create(file=("input.jsonl", b"{}"), purpose="batch")
                again = await ours.batches.create(
                    input_file_id=copy.id, endpoint=CHAT, completion_window="24h"
                )
                assert (await ended(theirs, again.id)).status == "failed"
