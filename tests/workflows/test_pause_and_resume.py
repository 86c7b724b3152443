"""Pause and resume of a batch, and the state that its workflow reports."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle

from batchwright.contracts.search_attributes import DEADLINE, MODELS, STATUS, TENANT
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    BatchResult,
    BatchState,
    ModelProgress,
    WaitingReason,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.temporal.workflow_starts import start_batch
from batchwright.workflows import model_children, options
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import POLICY, WorkflowFixture, state_of
from tests.workflows.stub_activities import finishes, ingested, share, until_cancelled

pytestmark = pytest.mark.integration


async def shown(batch: "WorkflowHandle[BatchWorkflow, BatchResult]") -> str:
    """Return the current details of the batch's workflow."""
    found = await batch.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return found.current_details


async def test_a_resumed_batch_continues_where_it_was_paused(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.settled(slices=1)
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.pause)
        assert (await state_of(batch)).paused
        await fixture.execution.ended(2)
        fixture.execution.behaviours[1] = finishes
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert sorted(request.number for request in fixture.execution.requests) == [0, 1, 1]
    assert [request.generation for request in fixture.execution.requests if request.number == 0] == [0]


async def test_a_batch_paused_during_ingestion_starts_no_slice_until_resumed(
    fixture: WorkflowFixture,
) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        fixture.ingestion.released.set()
        while (await state_of(batch)).status != BatchStatus.IN_PROGRESS:
            pass
        assert fixture.execution.requests == []
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED


async def test_of_a_pause_and_a_resume_that_arrive_in_another_order_the_one_counted_last_stays(
    fixture: WorkflowFixture,
) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.ingestion.started.wait()
        paused = list[bool]()
        for signal, change in (("pause", 2), ("resume", 1), ("resume", 4), ("pause", 3), ("pause", 0)):
            await batch.signal(signal, *([change] if change else []))
            paused.append((await state_of(batch)).paused)
        assert paused == [True, True, False, False, True]
        await batch.signal(BatchWorkflow.resume, 5)
        fixture.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.COMPLETED


async def test_a_paused_batch_can_be_cancelled(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.pause)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_paused_batch_ends_at_its_deadline(fixture: WorkflowFixture) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        fixture.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED
    assert fixture.execution.requests == []


async def test_the_state_says_why_a_model_waits(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = ingested(share("a"), share("b"))
    fixture.execution.behaviours = {"a": until_cancelled, "b": until_cancelled}
    async with fixture.workers(["a", "b"]):
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(4)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="a", reason="circuit open"))
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="b", reason="rate limited"))
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="b"))
        assert await state_of(batch) == BatchState(
            status=BatchStatus.IN_PROGRESS,
            models=[
                ModelProgress(model="a", lines=20, slices=2),
                ModelProgress(model="b", lines=20, slices=2),
            ],
            waiting=[WaitingReason(model="a", reason="circuit open")],
        )
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_the_web_ui_says_why_a_whole_batch_waits(fixture: WorkflowFixture) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="", reason="no storage"))
        assert "- waiting: no storage" in await shown(batch)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model=""))
        assert "waiting" not in await shown(batch)
        fixture.ingestion.released.set()
        await batch.result()


async def test_the_web_ui_shows_the_failed_lines_of_an_ended_batch_by_code(fixture: WorkflowFixture) -> None:
    fixture.finalization.failed_by_code = {"http_400": 1}
    async with fixture.workers():
        batch = await fixture.start()
        await batch.result()
        assert "- failed with `http_400`: 1" in await shown(batch)


async def test_the_web_ui_shows_when_the_batch_will_be_done(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    forecast = BatchForecast(
        made_at=datetime(2026, 1, 1, tzinfo=UTC),
        lines_per_second=12.5,
        lines_ahead=3000,
        p50_seconds=3600,
        p90_seconds=5400,
        window=WindowFit.AT_RISK,
    )
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.forecast, forecast)
        assert (await state_of(batch)).forecast == forecast
        assert (
            "- forecast of 00:00:00 UTC: may end after the window; done by 2026-01-01 01:00 UTC (p50), "
            "2026-01-01 01:30 UTC (p90); 12.5 lines/s, 3,000 lines of other batches ahead"
        ) in await shown(batch)
        await batch.signal(BatchWorkflow.pause)
        assert "forecast" not in await shown(batch)
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()
        assert (await state_of(batch)).forecast is None


async def test_progress_of_a_model_clears_its_waiting_reason(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = ingested(share("a", 4))
    fixture.execution.behaviours["a"] = until_cancelled
    async with fixture.workers(["a"]):
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(4)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="a", reason="circuit open"))
        still = ModelProgress(model="a", lines=40, slices=4)
        await batch.signal(BatchWorkflow.progress, still)
        assert [waiting.model for waiting in (await state_of(batch)).waiting] == ["a"]
        await batch.signal(BatchWorkflow.progress, still.model_copy(update={"slices_done": 1}))
        assert (await state_of(batch)).waiting == []
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_an_ended_batch_is_found_by_its_search_attributes(fixture: WorkflowFixture) -> None:
    order = await fixture.order()
    async with fixture.workers():
        batch = await fixture.start(order)
        await batch.result()
        attributes = (await batch.describe()).typed_search_attributes
    assert attributes[STATUS] == "completed"
    assert attributes[TENANT] == "acme"
    assert attributes[MODELS] == ["m"]
    assert attributes[DEADLINE] == order.deadline


async def test_search_attributes_that_the_start_has_set_are_not_set_again(fixture: WorkflowFixture) -> None:
    order = await fixture.order()
    async with fixture.workers():
        await start_batch(fixture.client, order)
        batch = fixture.client.get_workflow_handle_for(BatchWorkflow.run, order.batch_id)
        await batch.result()
        attributes = (await batch.describe()).typed_search_attributes
        types = [event.event_type async for event in batch.fetch_history_events()]
    assert attributes[STATUS] == "completed"
    assert attributes[TENANT] == "acme"
    assert attributes[MODELS] == ["m"]
    assert attributes[DEADLINE] == order.deadline
    updates = types.count(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES)
    assert updates == 3  # in_progress, finalizing, completed


async def test_a_fleet_wide_waiting_reason_stays_until_it_is_cleared(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    stays = WaitingReason(model="m", reason="no worker polls its queue", fleet_wide=True)
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.waiting, stays)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m"))
        await batch.signal(
            BatchWorkflow.progress, ModelProgress(model="m", lines=20, slices=2, slices_done=1)
        )
        assert (await state_of(batch)).waiting == [stays]
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m", fleet_wide=True))
        assert (await state_of(batch)).waiting == []
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_the_waiting_reason_of_a_slice_stays_while_a_fleet_wide_one_comes_and_goes(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    of_slice = WaitingReason(model="m", reason="the backend forbids the key")
    of_fleet = WaitingReason(model="m", reason="no response recently", fleet_wide=True)
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.waiting, of_slice)
        await batch.signal(BatchWorkflow.waiting, of_fleet)
        assert (await state_of(batch)).waiting == [of_slice, of_fleet]
        details = await shown(batch)
        assert f"waiting: {of_slice.reason}; {of_fleet.reason}" in details
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m", fleet_wide=True))
        assert (await state_of(batch)).waiting == [of_slice]
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


@pytest.mark.parametrize(("models", "each"), [(1, 20), (3, 6)])
async def test_the_reports_of_progress_of_all_models_together_are_limited(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch, models: int, each: int
) -> None:
    monkeypatch.setattr(model_children, "_PROGRESS_REPORTS", 20)
    monkeypatch.setattr(options, "PROGRESS_INTERVAL", timedelta(0))
    names = [f"m{number}" for number in range(models)]
    fixture.ingestion.result = ingested(*(share(name, 39) for name in names))
    policy = POLICY.model_copy(update={"outstanding_slices": 1})
    async with fixture.workers(names):
        batch = await fixture.start(await fixture.order(policy=policy))
        assert (await batch.result()).status == BatchStatus.COMPLETED
        events = (await batch.fetch_history()).events
    signals = [event.workflow_execution_signaled_event_attributes.signal_name for event in events]
    assert 0 < signals.count("progress") <= models * each
