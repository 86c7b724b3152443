"""An older PostgreSQL is restored from a real dump, by the guide's commands: what becomes of every batch."""

from pathlib import Path

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from starter.stack.postgres import EmbeddedPostgres
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.operations.guide import block, environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SMALL = chat_lines(MODELS, each=2)
LARGE = chat_lines(MODELS, each=600)


async def slower(stack: Stack, seconds: float) -> None:
    await stack.heal()
    for model in MODELS:
        await stack.faults(model=model, kind="slow", seconds=seconds, rate=1.0)


async def half_done(client: AsyncOpenAI) -> Batch:
    batch = await submit(client, LARGE)
    await settled(client, batch.id, 30)
    return batch


async def is_known(client: AsyncOpenAI, batch: Batch) -> bool:
    try:
        await client.batches.retrieve(batch.id)
    except NotFoundError:
        return False
    return True


def restore(data: Path, told: dict[str, str], folder: Path) -> None:
    """Into the server of a stack that has stopped, which is then started for it alone."""
    with EmbeddedPostgres(data / "postgres") as server:
        name = told["BATCHWRIGHT_DATABASE_URL"].rpartition("/")[2]
        url = f"{server.dsn.rpartition('/')[0]}/{name}"
        run(block("Restore PostgreSQL"), told | {"BATCHWRIGHT_DATABASE_URL": url}, folder)


async def test_an_older_postgresql_forgets_what_came_since_and_no_live_batch_loses_a_line(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with dev(data=data) as stack:
        told = environment(stack.now)
        async with stack.client() as client:
            ended_before = await submit(client, SMALL)
            kept = await ended(client, ended_before.id)
            await slower(stack, 0.5)
            live_before = await half_done(client)
            await slower(stack, 4.0)
            ended_since = await submit(client, SMALL)
            run(block("Back up"), told | {"OBJECTS": str(data / "objects")}, tmp_path)
            assert (await client.batches.retrieve(ended_since.id)).status not in {"completed", "finalizing"}
            await ended(client, ended_since.id)
            await slower(stack, 0.5)
            live_since = await half_done(client)
            both_since = await submit(client, SMALL)
            await ended(client, both_since.id)
            run(block("Pause retention"), told, tmp_path)
    restore(data, told, tmp_path)
    with dev(data=data) as stack:
        told = environment(stack.now)
        async with stack.client() as client:
            assert await client.batches.retrieve(kept.id) == kept
            assert not await is_known(client, both_since)
            done = await ended(client, live_before.id)
            await check_conservation(client, done, LARGE)
            assert (done.status, done.error_file_id) == ("completed", None)
            await until(lambda: is_known(client, live_since))
            made_again = await ended(client, live_since.id)
            await check_conservation(client, made_again, LARGE)
            assert (await client.batches.retrieve(ended_since.id)).status in {"validating", "in_progress"}
            run(block("After a restore"), told, tmp_path)
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {"objects", "batchwright.dump"}
