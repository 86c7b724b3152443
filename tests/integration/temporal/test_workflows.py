"""Workflows on a real Temporal server, for behaviour that the time-skipping test server lacks."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from batchwright.contracts.search_attributes import MODELS
from batchwright.contracts.terms import BatchStatus
from batchwright.settings import load
from batchwright.worker.wiring import deployment_config
from batchwright.workflows.batch import BatchWorkflow
from tests.integration.temporal import clusters
from tests.workflows.fixture import POLICY, WorkflowFixture, state_of
from tests.workflows.stub_activities import ingested, share, until_cancelled

pytestmark = pytest.mark.integration
NAME, BUILD = "batchwright", "1f2e3d"


@pytest_asyncio.fixture
async def server() -> AsyncGenerator[WorkflowEnvironment]:
    async with clusters.server() as environment:
        yield environment


async def test_slices_that_finish_while_they_are_cancelled_end_the_batch_as_cancelled(
    server: WorkflowEnvironment,
) -> None:
    """The server buffers events during a workflow task, so the cancel comes for a slice that has already
    finished.
    """
    fixture = WorkflowFixture(server)
    fixture.ingestion.result = ingested(share("m", 60))
    fixture.execution.behaviours = dict.fromkeys(range(50, 60), until_cancelled)
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(20)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_model_run_with_a_long_history_hands_over_on_a_real_server(
    server: WorkflowEnvironment,
) -> None:
    fixture = WorkflowFixture(server)
    fixture.ingestion.result = ingested(share("m", 60))
    policy = POLICY.model_copy(update={"hand_over_events": 60, "outstanding_slices": 8})
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(policy=policy))).result()
    assert result.status == BatchStatus.COMPLETED
    assert max(request.generation for request in fixture.execution.requests) > 0
    assert sorted(request.number for request in fixture.execution.requests) == list(range(60))


async def test_a_batch_of_many_models_with_long_names_runs(server: WorkflowEnvironment) -> None:
    """Temporal terminates a workflow whose search attribute is larger than 2 KiB."""
    fixture = WorkflowFixture(server)
    names = [f"{number}-" + "é" * 250 for number in range(25)]
    fixture.ingestion.result = ingested(
        *(share(f"m{number}").model_copy(update={"model": name}) for number, name in enumerate(names))
    )
    async with fixture.workers([f"m{number}" for number in range(25)]):
        batch = await fixture.start()
        assert (await batch.result()).status == BatchStatus.COMPLETED
        attributes = (await batch.describe()).typed_search_attributes
    assert attributes.get(MODELS) == names[:1]


@pytest.mark.slow
async def test_hundreds_of_pauses_and_resumes_leave_the_history_of_a_batch_short(
    server: WorkflowEnvironment,
) -> None:
    """If all pauses were signalled immediately, a pause and its resume would add over twenty events: at least
    two for each model.
    """
    models = [f"m{number}" for number in range(10)]
    fixture = WorkflowFixture(server)
    fixture.ingestion.result = ingested(*(share(model, 1) for model in models))
    policy = POLICY.model_copy(update={"max_change_events": 1_000})
    async with fixture.workers([]):  # the slices stay queued
        batch = await fixture.start(await fixture.order(policy=policy))
        while (await state_of(batch)).status != BatchStatus.IN_PROGRESS:
            pass
        for _ in range(100):
            for change in (BatchWorkflow.pause, BatchWorkflow.resume):
                await batch.signal(change)
                await state_of(batch)  # a workflow task of its own
        before = (await batch.describe()).history_length
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
        ended = await batch.describe()
    assert before < 2_000
    assert ended.history_length < before + 300


async def test_a_batch_of_a_versioned_worker_is_pinned_to_its_build(server: WorkflowEnvironment) -> None:
    fixture = WorkflowFixture(server, deployment_config(load(deployment_name=NAME, build_id=BUILD)))
    async with fixture.workers():
        await make_current(server.client)
        batch = await fixture.start()
        assert (await batch.result()).status == BatchStatus.COMPLETED
        versioning = (await batch.describe()).raw_description.workflow_execution_info.versioning_info
    assert versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    assert versioning.deployment_version.build_id == BUILD


async def make_current(client: Client) -> None:
    """Make the worker version current, as an operator does. Repeat this until its workers poll."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(RPCError),
        stop=stop_after_delay(240),
        wait=wait_fixed(0.1),
        reraise=True,
    ):
        with attempt:
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace, deployment_name=NAME, build_id=BUILD
                )
            )
