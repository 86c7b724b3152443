"""Signals of a whole fleet about one batch: together, they stay far below the limits of a workflow."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHandle

from batchwright.activities.services import signal_budget
from batchwright.activities.services.waiting_reason_publisher import (
    WaitingReasonPublisher,
    temporal_reason_signal,
)
from batchwright.contracts.temporal_payloads.batch import BatchForecast, BatchOrder, WindowFit
from batchwright.contracts.terms import Endpoint
from batchwright.rules.ids import new_batch_id
from batchwright.temporal.workflow_starts import start_batch
from batchwright.worker.control_tasks.forecast_publisher import temporal_forecast_signal
from tests.background_tasks import reasons_published
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.temporal.clusters import server

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
WORKERS = 65
EVENTS, EVENTS_FOR_WITHDRAWALS = 100, 50


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[Client]:
    async with server() as environment:
        yield environment.client


@pytest.fixture(autouse=True)
def _short_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_budget, "_MAX_EVENTS_AT_START", EVENTS)
    monkeypatch.setattr(signal_budget, "_MAX_EVENTS_AT_DEADLINE", EVENTS)
    monkeypatch.setattr(
        "batchwright.activities.services.waiting_reason_publisher.EVENTS_FOR_WITHDRAWALS",
        EVENTS_FOR_WITHDRAWALS,
    )


async def start(client: Client) -> WorkflowHandle[object, object]:
    now = datetime.now(UTC).replace(microsecond=0)
    order = BatchOrder(
        batch_id=new_batch_id(),
        tenant="acme",
        input_file_id="file-" + "0" * 32,
        endpoint=Endpoint.EMBEDDINGS,
        completion_window="14d",
        created_at=now,
        deadline=now + timedelta(days=14),
    )
    await start_batch(client, order)
    return client.get_workflow_handle(order.batch_id)


async def waiting_signals(workflow: WorkflowHandle[object, object]) -> int:
    events = (await workflow.fetch_history()).events
    names = [event.workflow_execution_signaled_event_attributes.signal_name for event in events]
    return names.count("waiting")


async def test_all_workers_together_send_no_more_signals_than_the_history_of_a_batch_has_room_for(
    client: Client,
) -> None:
    workflow = await start(client)
    table = MemoryDatabase().waiting
    workers = [WaitingReasonPublisher(temporal_reason_signal(client), table) for _ in range(WORKERS)]

    async def flap(reasons: WaitingReasonPublisher) -> None:
        for _ in range(10):
            reasons.report("acme", workflow.id, "llama", "its backend does not respond", 5.0)
            await reasons_published()
            reasons.clear("acme", workflow.id, "llama")
            await reasons_published()

    await asyncio.gather(*(flap(reasons) for reasons in workers))
    # Each worker may have found room just before another one took it.
    assert EVENTS < await waiting_signals(workflow) <= EVENTS + EVENTS_FOR_WITHDRAWALS + WORKERS
    await workflow.signal("cancel")


async def test_forecasts_are_not_sent_to_a_workflow_with_a_long_history(client: Client) -> None:
    workflow = await start(client)
    forecast = BatchForecast(
        made_at=datetime.now(UTC),
        lines_per_second=1.0,
        lines_ahead=0,
        p50_seconds=1.0,
        p90_seconds=2.0,
        window=WindowFit.FITS,
    )
    send = temporal_forecast_signal(client)
    for _ in range(EVENTS + 10):
        assert await send(workflow.id, forecast)
    assert (await workflow.describe()).history_length == EVENTS
