"""Crashes of workers on a real Temporal server.

A shutdown does not count as a crash. A slice that crashes too many workers makes its batch fail.
"""

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.client import Client, Interceptor
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors.activity_metrics import ActivityMetricsInterceptor
from batchwright.worker.interceptors.attempt_history import StepCrashes, step_crashes
from batchwright.worker.interceptors.step_quarantine import StepQuarantineInterceptor
from tests.integration.temporal import clusters
from tests.workflows.fixture import WorkflowFixture
from tests.workflows.stub_activities import StubIngestion, ingested, share

pytestmark = pytest.mark.integration
SHUTDOWNS = 2


class Counter(ActivityMetricsInterceptor, Interceptor):
    """An interceptor of a Temporal client that counts activities. All workers that use this
    client have it.
    """


class Quarantine(StepQuarantineInterceptor, Interceptor):
    """An interceptor of a Temporal client that quarantines activities which crash workers. All workers that
    use this client have it.
    """


class ObservedIngestion(StubIngestion):
    """An ingestion activity that records which crashes each of its attempts found."""

    def __init__(self) -> None:
        super().__init__(ingested(share("m")))
        self.found: list[StepCrashes] = []

    @activity.defn(name="ingest")
    async def ingest(self, order: BatchOrder) -> IngestResult:
        info = activity.info()
        self.found.append(step_crashes(info.attempt, info.heartbeat_details, info.started_time))
        return await super().ingest(order)


@pytest_asyncio.fixture
async def fixture() -> AsyncGenerator[WorkflowFixture]:
    async with clusters.server() as environment:
        fixture = WorkflowFixture(environment)
        config = environment.client.config()
        config["interceptors"] = [Counter(Metrics()), Quarantine(asyncio.Lock())]
        fixture.client = Client(**config)
        yield fixture


async def test_an_attempt_that_a_shutdown_of_its_worker_cancels_is_no_crash(fixture: WorkflowFixture) -> None:
    fixture.ingestion = ingestion = ObservedIngestion()
    ingestion.released.clear()
    batch = None
    for _ in range(SHUTDOWNS):
        async with fixture.workers():
            batch = batch or await fixture.start()
            await ingestion.started.wait()
        ingestion.started.clear()
    ingestion.released.set()
    async with fixture.workers():
        assert batch is not None
        result = await batch.result()
    assert result.status == BatchStatus.COMPLETED
    assert ingestion.found == [StepCrashes(attempt=number) for number in range(1, SHUTDOWNS + 2)]


async def test_a_slice_that_crashes_its_workers_fails_the_batch_with_its_files(
    fixture: WorkflowFixture,
) -> None:
    async def gives_up(request: SliceRequest) -> SliceResult:
        raise ApplicationError("5 workers crashed", type=Failure.WORKER_CRASHED, non_retryable=True)

    fixture.execution.behaviours[1] = gives_up
    async with fixture.workers():
        await (await fixture.start()).result()
    [request] = fixture.finalization.requests
    [error] = request.errors
    assert request.status == BatchStatus.FAILED
    assert error.code == "worker_crashed"
    assert error.message.startswith("Model 'm': workers crashed each time")
