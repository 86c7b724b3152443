"""Copies of a batch's files to its output location: they are made after the end of the batch, and delay
nothing.
"""

from datetime import timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.temporal_payloads.output_copies import OutputCopyState
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows import options
from tests.workflows.fixture import WorkflowFixture

pytestmark = pytest.mark.integration


async def order_of(fixture: WorkflowFixture) -> BatchOrder:
    return (await fixture.order()).model_copy(update={"output_location": "s3://out/blue"})


async def test_the_files_are_copied_after_the_batch_has_ended(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        result = await (await fixture.start(await order_of(fixture))).result()
        assert result.status == BatchStatus.COMPLETED
        assert await fixture.copied() is OutputCopyState.WRITTEN
    assert (fixture.copies.attempts, fixture.copies.given_up) == (1, 0)


async def test_a_bucket_that_is_down_delays_no_batch_and_gets_the_files_later(
    fixture: WorkflowFixture,
) -> None:
    fixture.copies.is_down = True
    async with fixture.workers():
        result = await (await fixture.start(await order_of(fixture))).result()
        assert result.status == BatchStatus.COMPLETED
        fixture.copies.is_down = False
        assert await fixture.copied() is OutputCopyState.WRITTEN
    assert fixture.copies.given_up == 0


async def test_a_bucket_that_stays_down_makes_the_copy_fail_at_last(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_OUTPUT_COPY_PATIENCE", timedelta(seconds=2))
    fixture.copies.is_down = True
    async with fixture.workers():
        await (await fixture.start(await order_of(fixture))).result()
        assert await fixture.copied() is OutputCopyState.FAILED
    assert fixture.copies.attempts > 1
    assert fixture.copies.given_up == 1


async def test_a_batch_that_fails_has_its_copy_too(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = IngestResult(ingest_prefix="", total=1, models=[], failed=True)
    async with fixture.workers():
        result = await (await fixture.start(await order_of(fixture))).result()
        assert result.status == BatchStatus.FAILED
        assert await fixture.copied() is OutputCopyState.WRITTEN


async def test_a_copy_that_an_operator_cancels_has_failed(fixture: WorkflowFixture) -> None:
    fixture.copies.is_down = True
    async with fixture.workers():
        await (await fixture.start(await order_of(fixture))).result()
        await fixture.client.get_workflow_handle("output-copy-batch_1").cancel()
        assert await fixture.copied() is OutputCopyState.FAILED


async def test_a_batch_without_a_location_starts_no_copy(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        await (await fixture.start()).result()
        children = [
            event
            async for event in fixture.client.get_workflow_handle("batch_1").fetch_history_events()
            if event.HasField("start_child_workflow_execution_initiated_event_attributes")
        ]
    assert len(children) == 1  # the run of the model
