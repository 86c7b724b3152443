"""An older PostgreSQL dump is restored with the guide's commands, and each batch ends as documented."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types import Batch

from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.operations.guide import block, environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
*HEALTHY, UNAVAILABLE = MODELS  # the last answers 503 for as long as the first stack runs
SMALL = chat_lines(HEALTHY, each=2)
LARGE = chat_lines(MODELS, each=60)


async def one_model_is_unavailable(stack: Stack) -> None:
    await stack.heal()
    await stack.faults(model=UNAVAILABLE, kind="503", rate=1.0)


async def submit_unending(client: AsyncOpenAI) -> Batch:
    """Submit a batch that cannot end before the restart. Return it when 30 of its lines have results."""
    batch = await submit(client, LARGE)
    await settled(client, batch.id, 30)
    return batch


async def is_known(client: AsyncOpenAI, batch: Batch) -> bool:
    try:
        await client.batches.retrieve(batch.id)
    except NotFoundError:
        return False
    return True


@contextmanager
def objects_come_and_go(folder: Path) -> Generator[None]:
    """Context manager that creates and deletes files in the folder repeatedly, as workers do."""
    is_over = threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            for number in range(100):
                (folder / f"check-{number}").touch()
            for number in range(100):
                (folder / f"check-{number}").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def restore(data: Path, variables: dict[str, str], folder: Path) -> None:
    """Restore the dump into the database of a stopped stack, with the commands of the guide."""
    with EmbeddedPostgres(data / "postgres") as server:
        name = variables["BATCHWRIGHT_DATABASE_URL"].rpartition("/")[2]
        url = f"{server.dsn.rpartition('/')[0]}/{name}"
        run(block("Restore PostgreSQL"), variables | {"BATCHWRIGHT_DATABASE_URL": url}, folder)


async def test_a_restored_postgresql_forgets_newer_batches_and_no_live_batch_loses_a_line(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with dev(data=data) as stack:
        variables = environment(stack.now)
        async with stack.client() as client:
            ended_before = await submit(client, SMALL)
            restored = await ended(client, ended_before.id)
            await one_model_is_unavailable(stack)
            live_before = await submit_unending(client)
            async with stack.backend.hold():  # no line is answered while the backup is made
                ended_since = await submit(client, SMALL)
                with objects_come_and_go(stack.objects):
                    run(block("Back up"), variables | {"OBJECTS": str(stack.objects)}, tmp_path)
                status = (await client.batches.retrieve(ended_since.id)).status
                assert status not in {"completed", "finalizing"}
            await ended(client, ended_since.id)
            live_since = await submit_unending(client)
            both_since = await submit(client, SMALL)
            await ended(client, both_since.id)
            run(block("Pause retention"), variables, tmp_path)
    restore(data, variables, tmp_path)
    with dev(data=data) as stack:
        variables = environment(stack.now)
        async with stack.client() as client:
            assert await client.batches.retrieve(restored.id) == restored
            assert not await is_known(client, both_since)
            done = await ended(client, live_before.id)
            await check_conservation(client, done, LARGE)
            assert (done.status, done.error_file_id) == ("completed", None)
            await until(lambda: is_known(client, live_since))
            rerun = await ended(client, live_since.id)
            await check_conservation(client, rerun, LARGE)
            assert (await client.batches.retrieve(ended_since.id)).status in {"validating", "in_progress"}
            run(block("After a restore"), variables, tmp_path)
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {"objects.tar", "batchwright.dump"}
