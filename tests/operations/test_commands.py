"""The guide's commands on a running stack, in the order an operator comes to them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.temporal import connect
from tests.e2e.batches import chat_lines, ended, settled, submit
from tests.e2e.stack import MODELS, Stack, dev
from tests.operations.guide import block, environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def house() -> Iterator[Stack]:
    with dev() as stack:
        yield stack


def shell(house: Stack, **more: str) -> dict[str, str]:
    return environment(house.now, **more)


async def test_one_sees_what_there_is(house: Stack, tmp_path: Path) -> None:
    said = run(block("Look"), shell(house), tmp_path)
    assert "ok  workers" in said
    assert "BATCHWRIGHT_DATABASE_URL" in said
    assert "inference.llama_3_1_8b" in said
    assert "fingerprint" in said.lower()


async def test_one_steers_a_batch_that_runs(house: Stack, tmp_path: Path) -> None:
    for model in MODELS:
        await house.faults(model=model, kind="slow", seconds=0.5, rate=1.0)
    async with house.client() as client:
        batch = await submit(client, chat_lines(MODELS, each=600))
        await settled(client, batch.id, 10)
        said = run(block("Steer"), shell(house, ID=batch.id), tmp_path)
        done = await ended(client, batch.id)
    assert batch.id in said
    assert done.status == "cancelled"
    assert done.output_file_id
    await house.heal()


def test_one_looks_after_files_and_storage(house: Stack, tmp_path: Path) -> None:
    said = run(block("Tidy"), shell(house), tmp_path)
    assert "would go" in said
    assert "orphans" in said


async def test_one_prepares_an_upgrade_while_batches_run(house: Stack, tmp_path: Path) -> None:
    async with house.client() as client:
        for model in MODELS:
            await house.faults(model=model, kind="slow", seconds=0.2, rate=1.0)
        batch = await submit(client, chat_lines(MODELS, each=200))
        await settled(client, batch.id, 10)
        said = run(block("Upgrade, and go back"), shell(house), tmp_path)
        assert (await ended(client, batch.id)).status == "completed"
    assert "nothing to apply" in said
    assert "search attribute BatchwrightStatus: was there" in said


async def test_retention_is_paused_and_goes_on(house: Stack, tmp_path: Path) -> None:
    client = await connect(load(temporal_address=house.now.temporal))
    schedule = client.get_schedule_handle("batchwright-retention")
    run(block("Pause retention"), shell(house), tmp_path)
    assert (await schedule.describe()).schedule.state.paused
    said = run(block("After a restore"), shell(house), tmp_path)
    assert not (await schedule.describe()).schedule.state.paused
    assert "lost" in said
