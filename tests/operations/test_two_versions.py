"""Two releases of the API at once: the newer one's tables grow under the older one, and both serve them."""

import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from starter.stack.ports import free_port
from tests.e2e.batches import CHAT, chat_line, chat_lines, check_conservation, ended, submit
from tests.e2e.stack import MODELS
from tests.integration.clusters import cluster
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
class House:
    """Where the older API and workers are, and how a newer API is had."""

    environment: dict[str, str]
    newer_code: Path
    old: str

    @contextmanager
    def newer(self) -> Generator[str]:
        migrate = [sys.executable, "-P", "-m", "starter", "migrate"]
        told = {**self.environment, "PYTHONPATH": f"{self.newer_code}:{ROOT}", "PATH": "/usr/bin"}
        said = subprocess.run(migrate, env=told, check=True, capture_output=True, text=True).stdout
        assert "9000_newer.sql" in said
        with api(self.environment, self.newer_code) as url:
            yield url


@contextmanager
def api(environment: dict[str, str], code: Path | None = None) -> Generator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    told = {**environment, "BATCHWRIGHT_API_PORT": str(port)}
    with process("api", well=f"{url}/readyz", environment=told, code=code):
        yield url


@pytest.fixture
def newer_code(tmp_path: Path) -> Path:
    """Ours, with a migration more."""
    folder = tmp_path / "newer"
    shutil.copytree(ROOT / "batchwright", folder / "batchwright")
    (folder / "batchwright" / "database" / "migrations" / "9000_newer.sql").write_text(_GROWTH)
    return folder


@pytest.fixture
async def house(tmp_path: Path, database_url: str, newer_code: Path) -> AsyncGenerator[House]:
    simulator, metrics = free_port(), free_port()
    async with cluster(is_set_up=True) as address:
        environment = {
            "BATCHWRIGHT_DATABASE_URL": database_url,
            "BATCHWRIGHT_TEMPORAL_ADDRESS": address,
            "BATCHWRIGHT_STORAGE_DIR": str(tmp_path / "objects"),
            "BATCHWRIGHT_BACKENDS": f'["http://127.0.0.1:{simulator}"]',
            "BATCHWRIGHT_METRICS_PORT": str(metrics),
        }
        backend = process(
            *("simulator", "--port", str(simulator)),
            well=f"http://127.0.0.1:{simulator}/healthz",
            environment={},
        )
        worker = process("worker", well=f"http://127.0.0.1:{metrics}/readyz", environment=environment)
        with backend, worker, api(environment) as old:
            yield House(environment, newer_code, old)


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_an_older_api_and_a_newer_one_serve_the_same_batches_side_by_side(house: House) -> None:
    lines = chat_lines(MODELS, each=30)
    async with client(house.old) as old:
        before = await submit(old, lines)  # its statements are prepared before the tables grow
        with house.newer() as url:
            async with client(url) as new:
                made = {old: before, new: await submit(new, lines)}
                for ours, theirs in ((old, new), (new, old)):
                    done = await ended(theirs, made[ours].id)
                    assert done.status == "completed"
                    await check_conservation(theirs, done, lines)
                    assert await ours.batches.retrieve(done.id) == done
                assert [each.id async for each in old.batches.list()] == [
                    each.id async for each in new.batches.list()
                ]


async def test_what_one_release_takes_in_the_other_steers(house: House) -> None:
    held = [chat_line(f"line-{number}", MODELS[0]) for number in range(2_000)]
    with house.newer() as url:
        async with client(house.old) as old, client(url) as new:
            for ours, theirs in ((old, new), (new, old)):
                batch = await submit(ours, held)
                await theirs.post(f"/batches/{batch.id}/x/pause", cast_to=object)
                await ours.batches.cancel(batch.id)
                done = await ended(theirs, batch.id)
                assert done.status in {"cancelled", "completed"}
                await check_conservation(theirs, done, held)
                file = await ours.files.retrieve(batch.input_file_id)
                assert (await theirs.files.delete(file.id)).deleted
                copy = await theirs.files.create(file=("input.jsonl", b"{}"), purpose="batch")
                again = await ours.batches.create(
                    input_file_id=copy.id, endpoint=CHAT, completion_window="24h"
                )
                assert (await ended(theirs, again.id)).status == "failed"
