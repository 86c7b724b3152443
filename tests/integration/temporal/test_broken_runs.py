"""Batches whose workflow run was ended from outside: they are found on a real server."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.rules.ids import new_batch_id
from batchwright.worker.control_tasks import fleet_metrics
from batchwright.worker.control_tasks.fleet_metrics import TemporalEndedRuns
from tests.e2e.batches import until
from tests.integration.temporal.clusters import server

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
    runs = TemporalEndedRuns(client)
    terminated, open_, another = new_batch_id(), new_batch_id(), new_batch_id()
    await start(client, terminated)
    await start(client, open_)
    await start(client, another, "RetentionWorkflow")
    for each in (another, terminated):
        await client.get_workflow_handle(each).terminate()

    async def is_found() -> bool:
        return terminated in await runs.with_ended_run([terminated])

    await until(is_found)
    assert await runs.with_ended_run([terminated, open_, another]) == {terminated}
    assert [await runs.is_open(each) for each in (terminated, open_, new_batch_id())] == [False, True, False]
    await start(client, terminated)
    assert await runs.is_open(terminated)


async def test_terminated_runs_of_live_batches_are_found_among_more_of_other_batches(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_metrics, "_MAX_LOST_RUNS", 1)
    monkeypatch.setattr(fleet_metrics, "_IDS_PER_QUERY", 2)
    runs, live = TemporalEndedRuns(client), sorted(new_batch_id() for _ in range(3))
    for batch_id in (live[0], live[2], new_batch_id()):
        await start(client, batch_id)
        await client.get_workflow_handle(batch_id).terminate()

    async def are_found() -> bool:
        return await runs.with_ended_run(live) == frozenset((live[0], live[2]))

    await until(are_found)
