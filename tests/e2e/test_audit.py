"""The audit on a running stack: an older database, and a run that somebody terminated."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from openai.types import Batch

from activities.audit.compare import Audit, Sources
from activities.audit.differences import Report
from activities.audit.runs import TemporalRuns
from batchwright.database.driver import connect as connect_database
from batchwright.database.pool import open_database
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


async def audit(stack: Stack) -> Report:
    """As `batchwright audit --repair` does, ten minutes from now."""
    now = stack.now
    settings = load(
        temporal_address=now.temporal, temporal_namespace=now.namespace, database_url=now.postgres
    )
    database = await open_database(settings)
    try:
        later = datetime.now(UTC) + timedelta(minutes=10)
        runs, storage = TemporalRuns(await connect(settings)), LocalStorage(stack.objects)
        return await Audit(Sources(database, storage, runs, settings, now=later, repair=True)).run()
    finally:
        await database.close()


async def without_run(stack: Stack, count: int) -> bool:
    """Whether so many live batches whose run was ended from outside are the most that a process shows."""
    async with http_client() as http:
        pages = [(await http.get(url)).text for url in stack.now.metrics]
    shown = re.findall("^batchwright_batches_without_run (.+)$", "\n".join(pages), re.MULTILINE)
    return max(map(float, shown)) == count


async def test_an_older_database_gets_the_ends_and_files_that_its_runs_know(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=5)
        batch = await ended(client, (await submit(client, lines)).id)
        database = await connect_database(stack.now.postgres)
        await database.execute(_OLDER, batch.id)
        await database.execute("DELETE FROM files WHERE id = $1", batch.output_file_id)
        await database.close()
        report = await audit(stack)
        again = await client.batches.retrieve(batch.id)
        await check_conservation(client, again, lines)
    assert [one.repaired for one in report.differences if one.id == batch.id] == [True]
    assert (again.status, again.output_file_id) == ("completed", batch.output_file_id)


async def test_a_terminated_run_leaves_a_failed_batch_that_can_be_resumed(stack: Stack) -> None:
    await stack.faults(model=MODELS[0], kind="hang", rate=1.0)  # so that it does not end before
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=60)
        batch = await submit(client, lines)
        await settled(client, batch.id, 20)
        settings = load(temporal_address=stack.now.temporal, temporal_namespace=stack.now.namespace)
        await (await connect(settings)).get_workflow_handle(batch.id).terminate()
        await until(lambda: without_run(stack, 1))
        await audit(stack)
        await until(lambda: without_run(stack, 0))
        failed = await client.batches.retrieve(batch.id)
        await stack.heal()
        resumed = await client.post(f"/batches/{batch.id}/x/resume", cast_to=Batch)
        done = await ended(client, resumed.id)
        await check_conservation(client, done, lines)
    assert failed.status == "failed"
    assert done.status == "completed"
