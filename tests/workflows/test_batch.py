"""A batch from its start to its files."""

import pytest

from batchwright.contracts.batch import BatchResult
from batchwright.contracts.finalization import FinalizeRequest
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus
from tests.workflows.house import House
from tests.workflows.steps import ingested, share

pytestmark = pytest.mark.integration


async def test_every_slice_runs_once_and_the_files_are_written(house: House) -> None:
    order = await house.order()
    async with house.workers():
        result = await (await house.start(order)).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=20, completed=20)
    assert sorted(request.number for request in house.execution.requests) == [0, 1]
    assert house.finalization.requests == [
        FinalizeRequest(
            order=order,
            prefix="ingest/1",
            models=[share("m")],
            total=20,
            status=BatchStatus.COMPLETED,
        )
    ]


async def test_models_run_beside_each_other(house: House) -> None:
    house.ingestion.result = ingested(share("a", 3), share("b", 1))
    async with house.workers(["a", "b"]):
        result = await (await house.start()).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=40, completed=40)
    asked = sorted((request.model, request.number) for request in house.execution.requests)
    assert asked == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


async def test_a_batch_of_unserved_models_goes_straight_to_its_files(house: House) -> None:
    house.ingestion.result = IngestResult(prefix="ingest/1", total=5, unserved=5)
    async with house.workers([]):
        result = await (await house.start()).result()
    assert result == BatchResult(status=BatchStatus.COMPLETED, total=5, completed=5)
    assert house.execution.requests == []


async def test_an_invalid_input_ends_the_batch_without_files(house: House) -> None:
    house.ingestion.result = IngestResult(failed=True, total=7, errors=3)
    async with house.workers([]):
        result = await (await house.start()).result()
    assert result == BatchResult(status=BatchStatus.FAILED, total=7)
    assert house.finalization.requests == []
    assert house.lifecycle.requests == []
