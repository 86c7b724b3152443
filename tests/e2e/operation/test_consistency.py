"""The consistency check of a running stack notices that the database was restored from an older state.

It also notices that a workflow run was terminated.
"""

import re
from datetime import UTC, datetime, timedelta

import pytest
from openai.types import Batch

from batchwright.activities.consistency.check import ComparedSources, ConsistencyCheck
from batchwright.activities.consistency.report import ConsistencyReport
from batchwright.activities.consistency.workflow_runs import TemporalBatchRunSource
from batchwright.database.driver import connect as connect_database
from batchwright.database.postgres import open_database
from batchwright.settings import load
from batchwright.storage.local import LocalStorage
from batchwright.temporal import connect
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_OLDER = """
UPDATE batches SET status = 'in_progress', finalizing_at = NULL, completed_at = NULL, output_file_id = NULL,
                   error_file_id = NULL, completed = 0, failed = 0 WHERE id = $1
"""

_BEFORE_THE_END_OF_INGESTION = """
UPDATE batches SET status = 'validating', in_progress_at = NULL, total = 0, models = '[]' WHERE id = $1
"""


async def check(stack: Stack) -> ConsistencyReport:
    """Run `batchwright consistency --repair`, ten minutes in the future."""
    now = stack.now
    settings = load(
        temporal_address=now.temporal, temporal_namespace=now.namespace, database_url=now.postgres
    )
    database = await open_database(settings)
    try:
        later = datetime.now(UTC) + timedelta(minutes=10)
        runs, storage = TemporalBatchRunSource(await connect(settings)), LocalStorage(stack.objects)
        return await ConsistencyCheck(
            ComparedSources(database, storage, runs, settings, now=later, repair=True)
        ).run()
    finally:
        await database.close()


async def without_run(stack: Stack, count: int) -> bool:
    """Return True if the metrics show `count` live batches without a workflow run.

    If several processes show different numbers, the largest one counts.
    """
    async with http_client() as http:
        pages = [(await http.get(url)).text for url in stack.now.metrics]
    shown = re.findall("^batchwright_batches_without_run (.+)$", "\n".join(pages), re.MULTILINE)
    return max(map(float, shown), default=-1) == count


async def test_a_restored_database_gets_the_ends_and_files_from_its_runs(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=5)
        batch = await ended(client, (await submit(client, lines)).id)
        await (await stack.server()).get_workflow_handle(batch.id).result()  # it ends after the batch's row
        database = await connect_database(stack.now.postgres)
        await database.execute(_OLDER, batch.id)
        await database.execute("DELETE FROM files WHERE id = $1", batch.output_file_id)
        await database.close()
        report = await check(stack)
        again = await client.batches.retrieve(batch.id)
        await check_conservation(client, again, lines)
    assert [one.repaired for one in report.differences if one.id == batch.id] == [True]
    assert (again.status, again.output_file_id) == ("completed", batch.output_file_id)


async def test_a_row_that_lost_the_end_of_its_ingestion_gets_it_from_its_run(stack: Stack) -> None:
    await stack.faults(model=MODELS[0], kind="503", rate=1.0)  # so that it does not end before
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=60)
        batch = await submit(client, lines)
        await settled(client, batch.id, 20)
        database = await connect_database(stack.now.postgres)
        await database.execute(_BEFORE_THE_END_OF_INGESTION, batch.id)
        for table in ("throughput", "batch_tags"):  # the same transaction has inserted these rows
            await database.execute(f"DELETE FROM {table} WHERE batch_id = $1", batch.id)
        await database.close()
        assert (await client.batches.retrieve(batch.id)).status == "validating"
        report = await check(stack)
        again = await client.batches.retrieve(batch.id)
        assert again.request_counts is not None
        assert (again.status, again.request_counts.total) == ("in_progress", len(lines))
        await stack.heal()
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
    assert [(one.kind, one.repaired) for one in report.differences if one.id == batch.id] == [
        ("row_outdated", True)
    ]
    assert done.status == "completed"


async def test_a_batch_whose_run_was_terminated_fails_and_can_be_resumed(stack: Stack) -> None:
    await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it does not end before
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=60)
        batch = await submit(client, lines)
        await settled(client, batch.id, 20)
        await (await stack.server()).get_workflow_handle(batch.id).terminate()
        await until(lambda: without_run(stack, 1))
        await check(stack)
        await until(lambda: without_run(stack, 0))
        failed = await client.batches.retrieve(batch.id)
        await stack.heal()
        resumed = await client.post(f"/batches/{batch.id}/x/resume", cast_to=Batch)
        done = await ended(client, resumed.id)
        await check_conservation(client, done, lines)
    assert failed.status == "failed"
    assert done.status == "completed"
