"""The whole life of a batch, from its start to its files."""

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchResult
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from tests.workflows.fixture import WorkflowFixture
from tests.workflows.stub_activities import ingested, share

pytestmark = pytest.mark.integration


async def test_every_slice_runs_once_and_the_files_are_written(fixture: WorkflowFixture) -> None:
    order = await fixture.order()
    async with fixture.workers():
        result = await (await fixture.start(order)).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=20, completed=20)
    assert sorted(request.number for request in fixture.execution.requests) == [0, 1]
    assert fixture.finalization.requests == [
        FinalizeRequest(
            order=order,
            ingest_prefix="ingest/1",
            models=[share("m")],
            total=20,
            status=BatchStatus.COMPLETED,
        )
    ]


async def test_models_run_beside_each_other(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = ingested(share("a", 3), share("b", 1))
    async with fixture.workers(["a", "b"]):
        result = await (await fixture.start()).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=40, completed=40)
    requested = sorted((request.model, request.number) for request in fixture.execution.requests)
    assert requested == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


async def test_a_batch_of_unserved_models_skips_execution_and_writes_its_files(
    fixture: WorkflowFixture,
) -> None:
    fixture.ingestion.result = IngestResult(ingest_prefix="ingest/1", total=5, unserved=5)
    async with fixture.workers([]):
        result = await (await fixture.start()).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=5, completed=5)
    assert fixture.execution.requests == []


async def test_an_invalid_input_ends_the_batch_without_files(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = IngestResult(failed=True, total=7, error_count=3)
    async with fixture.workers([]):
        result = await (await fixture.start()).result()
    assert result == BatchResult(status=BatchStatus.FAILED, total=7)
    assert fixture.finalization.requests == []
    assert fixture.lifecycle.requests == []
