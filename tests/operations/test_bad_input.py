"""A wrong setting of an installation is reported in one sentence that says how to mend it, and nothing is
lost.
"""

from pathlib import Path

import pytest

from tests.constants import constants
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.integration.api.test_process import running
from tests.integration.starter.commands import Ended, batchwright
from tests.integration.temporal.clusters import cluster
from tests.postgres import execute

pytestmark = pytest.mark.integration


async def started(process: str, **settings: str) -> Ended:
    """Run a process that cannot start with these settings, and return its exit code and output."""
    chosen = {"backends": '["http://127.0.0.1:9"]', "api_port": "0", "metrics_port": "0", **settings}
    async with cluster(is_set_up=True) as address:
        with constants(startup_seconds=1):
            return await batchwright(process, temporal_address=address, **chosen)


def last_message(ended: Ended) -> str:
    assert ended.code == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def settings_of(server: S3Server, **others: str) -> dict[str, str]:
    settings = {**server.settings(fresh_prefix()), **server.keys}
    ours = {name.removeprefix("BATCHWRIGHT_").lower(): value for name, value in settings.items()}
    return ours | others


async def test_a_wrong_bucket_ends_a_worker_that_starts_and_is_named(
    moto: S3Server, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.lend_keys(monkeypatch)
    settings = settings_of(moto, storage="s3://no-such-bucket/x", database_url=database_url)
    assert "no-such-bucket" in last_message(await started("worker", **settings))


def test_an_api_with_a_wrong_bucket_is_not_ready_and_accepts_no_file(
    tmp_path: Path, moto: S3Server, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.lend_keys(monkeypatch)
    settings = settings_of(moto, storage="s3://no-such-bucket/x", database_url=database_url)
    with running(tmp_path, **settings) as (_, client):
        ready = client.get("/readyz", timeout=120)
        file = {"file": ("a.jsonl", b"{}")}
        refused = client.post("/v1/files", files=file, data={"purpose": "batch"}, timeout=120)
    assert (ready.status_code, ready.json()["checks"]["storage"]) == (503, "unavailable")
    assert refused.status_code == 503


async def test_storage_check_names_a_wrong_bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.lend_keys(monkeypatch)
    ended = await batchwright("storage", "check", **settings_of(moto, storage="s3://no-such-bucket/x"))
    assert "no-such-bucket" in last_message(ended)


@pytest.mark.parametrize("process", ["api", "worker"])
async def test_migrations_behind_end_a_process_that_starts_with_the_command(
    process: str, tmp_path: Path, database_url: str
) -> None:
    await execute(database_url, "DELETE FROM migrations WHERE name = (SELECT max(name) FROM migrations)")
    settings = {"database_url": database_url, "storage_dir": str(tmp_path)}
    assert last_message(await started(process, **settings)).endswith("run `batchwright migrate` first.")


@pytest.mark.parametrize("process", ["api", "worker"])
async def test_migrations_that_break_with_this_version_end_a_process_that_starts(
    process: str, tmp_path: Path, database_url: str
) -> None:
    await execute(
        database_url, "INSERT INTO migrations (name, checksum, breaking) VALUES ('9999_later', 'x', true)"
    )
    settings = {"database_url": database_url, "storage_dir": str(tmp_path)}
    assert "9999_later" in (message := last_message(await started(process, **settings)))
    assert message.endswith("run the newer version of Batchwright that made it.")
