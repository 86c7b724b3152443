"""Every recorded webhook delivery gets its workflow, even if something fails in between."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.contracts.temporal_payloads.webhooks import DeliveryOrder
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookDelivery
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.control_tasks.webhook_dispatcher import WebhookDispatcher
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.webhook_rows import an_endpoint

NOW = datetime.now(UTC)
UNAVAILABLE = RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")


class DispatcherFixture:
    """A dispatcher, and a Temporal server that refuses the first `failures` starts and those in `refused`."""

    def __init__(self) -> None:
        self.database, self.metrics = MemoryDatabase(), Metrics()
        self.started: list[tuple[str, int]] = []
        self.fairness_keys: list[str] = []
        self.any_started = asyncio.Event()
        self.failures = 0
        self.refused: set[str] = set()
        self.dispatcher = WebhookDispatcher(self.database.webhook_deliveries, self._start, self.metrics)

    def record(self, number: int, age_seconds: float = 0, endpoint_id: str = "webhook_1") -> None:
        row = WebhookDelivery(
            tenant="t",
            id=f"wh_{number:04}",
            endpoint_id=endpoint_id,
            batch_id=f"batch_{number}",
            event_id=f"evt_{number}",
            type=EventType.BATCH_COMPLETED,
            occurred_at=NOW,
            created_at=datetime.now(UTC) - timedelta(seconds=age_seconds),
        )
        self.database.rows.webhook_deliveries["t", row.id] = row

    async def _start(self, order: DeliveryOrder, replays: int) -> None:
        if order.delivery_id in self.refused:
            raise UNAVAILABLE
        if self.failures:
            self.failures -= 1
            raise UNAVAILABLE
        self.started.append((order.delivery_id, replays))
        self.fairness_keys.append(order.fairness_key)
        self.any_started.set()


async def test_each_delivery_is_started_once() -> None:
    fixture = DispatcherFixture()
    for number in range(3):
        fixture.record(number)
    assert not await fixture.dispatcher.dispatch()
    assert not await fixture.dispatcher.dispatch()
    assert sorted(fixture.started) == [("wh_0000", 0), ("wh_0001", 0), ("wh_0002", 0)]


async def test_endpoints_of_single_batches_and_calls_take_turns_as_one_for_their_tenant() -> None:
    fixture = DispatcherFixture()
    for number, batch_id in enumerate(["", "batch_1", "job_2"]):
        fixture.record(number, endpoint_id=f"webhook_{number}")
        await fixture.database.webhook_endpoints.insert_for_batch(
            an_endpoint(f"webhook_{number}", batch_id=batch_id)
        )
    await fixture.dispatcher.dispatch()
    assert fixture.fairness_keys == ["", "t", "t"]  # empty: a turn of its own


async def test_more_deliveries_than_a_page_follow_at_once() -> None:
    fixture = DispatcherFixture()
    for number in range(201):
        fixture.record(number)
    assert await fixture.dispatcher.dispatch()
    assert not await fixture.dispatcher.dispatch()
    assert len(fixture.started) == 201


async def test_a_replay_is_another_start() -> None:
    fixture = DispatcherFixture()
    fixture.record(1)
    await fixture.dispatcher.dispatch()
    await fixture.database.webhook_deliveries.give_up("t", "wh_0001", "")
    await fixture.database.webhook_deliveries.replay("t", "wh_0001", lost_before=NOW)
    await fixture.dispatcher.dispatch()
    assert fixture.started == [("wh_0001", 0), ("wh_0001", 1)]


async def test_what_temporal_did_not_confirm_is_started_again() -> None:
    fixture = DispatcherFixture()
    fixture.record(1)
    fixture.failures = 1
    with pytest.raises(RPCError):
        await fixture.dispatcher.dispatch()
    await fixture.dispatcher.dispatch()
    assert fixture.started == [("wh_0001", 0)]


async def test_a_delivery_that_is_never_started_keeps_no_other_one_from_starting() -> None:
    fixture = DispatcherFixture()
    for number in range(15):
        fixture.record(number, age_seconds=100 - number)
    fixture.refused = {"wh_0000"}
    with pytest.raises(RPCError):
        await fixture.dispatcher.dispatch()
    assert sorted(fixture.started) == [(f"wh_{number:04}", 0) for number in range(1, 15)]
    assert [row.id for row in await fixture.database.webhook_deliveries.unstarted(20)] == ["wh_0000"]


async def test_it_goes_on_after_temporal_and_the_database_were_unavailable() -> None:
    fixture = DispatcherFixture()
    fixture.record(1)
    fixture.failures = 2
    fixture.database.rows.failing = DatabaseUnavailable("no answer")
    running = asyncio.create_task(fixture.dispatcher.run(every_seconds=0))
    for _ in range(5):
        await asyncio.sleep(0)
    fixture.database.rows.failing = None
    await fixture.any_started.wait()
    running.cancel()
    assert fixture.started == [("wh_0001", 0)]


async def test_the_age_of_the_oldest_event_that_waits_is_a_metric() -> None:
    fixture = DispatcherFixture()
    fixture.record(1, age_seconds=600)
    fixture.record(2)
    fixture.failures = 9
    with pytest.raises(RPCError):
        await fixture.dispatcher.dispatch()
    assert fixture.metrics.webhook_backlog_seconds.only.value >= 600
    fixture.failures = 0
    await fixture.dispatcher.dispatch()
    await fixture.dispatcher.dispatch()
    assert fixture.metrics.webhook_backlog_seconds.only.value == 0
