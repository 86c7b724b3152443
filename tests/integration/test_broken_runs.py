"""Which batches' runs were ended from outside, asked of a real server."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from batchwright.contracts.names import CONTROL_QUEUE
from batchwright.rules.ids import new_batch_id
from tests.e2e.batches import until
from tests.integration.clusters import server
from worker.broken_runs import ServerRuns

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[Client]:
    async with server() as environment:
        yield environment.client


async def start(client: Client, batch_id: str, workflow: str = "BatchWorkflow") -> None:
    again = WorkflowIDReusePolicy.ALLOW_DUPLICATE
    await client.start_workflow(workflow, "{}", id=batch_id, task_queue=CONTROL_QUEUE, id_reuse_policy=again)


async def test_a_terminated_run_of_a_batch_is_found_and_is_not_open_until_it_is_started_again(
    client: Client,
) -> None:
    runs = ServerRuns(client)
    terminated, open_, another = new_batch_id(), new_batch_id(), new_batch_id()
    await start(client, terminated)
    await start(client, open_)
    await start(client, another, "RetentionWorkflow")
    for each in (another, terminated):
        await client.get_workflow_handle(each).terminate()

    async def is_found() -> bool:
        return terminated in await runs.broken()

    await until(is_found)
    assert await runs.broken() == {terminated}
    assert [await runs.is_open(each) for each in (terminated, open_, new_batch_id())] == [False, True, False]
    await start(client, terminated)
    assert await runs.is_open(terminated)
