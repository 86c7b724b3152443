"""Activities that fail with an unknown exception in every attempt, on a real Temporal server."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.client import Client, Interceptor

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors import activity_metrics
from batchwright.worker.interceptors.activity_metrics import ActivityMetricsInterceptor
from tests.integration.temporal import clusters
from tests.workflows import stub_activities
from tests.workflows.fixture import WorkflowFixture

pytestmark = pytest.mark.integration
FAILURES = 2


class Counter(ActivityMetricsInterceptor, Interceptor):
    """An interceptor of a Temporal client that counts activities. All workers that use this
    client have it.
    """


class BrokenIngestion(stub_activities.StubIngestion):
    @activity.defn(name="ingest")
    async def ingest(self, order: BatchOrder) -> IngestResult:
        raise ValueError("a bug")


class BrokenFinalization(stub_activities.StubFinalization):
    @activity.defn(name="finalize")
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        raise ValueError("a bug")


async def breaks(request: SliceRequest) -> SliceResult:
    raise ValueError("a bug")


@pytest_asyncio.fixture
async def fixture(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[WorkflowFixture]:
    monkeypatch.setattr(activity_metrics, "MAX_UNEXPECTED_FAILURES", FAILURES)
    async with clusters.server() as environment:
        fixture = WorkflowFixture(environment)
        config = environment.client.config()
        config["interceptors"] = [Counter(Metrics())]
        fixture.client = Client(**config)
        yield fixture


async def test_an_unknown_exception_in_ingestion_fails_the_batch(fixture: WorkflowFixture) -> None:
    fixture.ingestion = BrokenIngestion(IngestResult())
    async with fixture.workers():
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.FAILED
    [request] = fixture.lifecycle.requests
    [error] = request.errors
    assert error.message.startswith("The input could not be prepared: An internal error ended 2 attempts")


async def test_an_unknown_exception_in_a_slice_fails_the_batch_with_its_files(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours = {1: breaks}
    async with fixture.workers():
        await (await fixture.start()).result()
    [request] = fixture.finalization.requests
    assert request.status == BatchStatus.FAILED
    assert "An internal error ended 2 attempts (ValueError)" in request.errors[0].message
    assert [one.number for one in fixture.execution.requests].count(1) == FAILURES


async def test_an_unknown_exception_in_finalization_fails_the_batch_and_keeps_its_results(
    fixture: WorkflowFixture,
) -> None:
    fixture.finalization = BrokenFinalization()
    async with fixture.workers():
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.FAILED
    [request] = fixture.lifecycle.requests
    assert request.keep_results
    assert request.errors[0].message.startswith("The results could not be written: An internal error")
