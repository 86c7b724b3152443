"""The table of webhook deliveries, and the events that batches cause, in PostgreSQL and in memory."""

from datetime import timedelta

import pytest

from batchwright.contracts.api_objects.webhook_events import TEST_BATCH, EventType
from batchwright.contracts.temporal_payloads.batch import BatchForecast, WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.database.tables.webhooks.webhook_deliveries import (
    UnstartedDelivery,
    WebhookDelivery,
)
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges
from tests.integration.database.rows import START, a_running_batch, after, an_order, an_outcome
from tests.integration.database.webhook_rows import (
    a_delivery,
    an_endpoint,
    attempt,
    attempted,
    change,
    create,
    endpoint_of,
    recorded,
    types,
)

# --- events


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED])
async def test_the_events_of_a_batch_are_recorded_with_their_times(
    any_database: Database, status: BatchStatus
) -> None:
    await create(any_database, an_endpoint())
    await a_running_batch(any_database)
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(status), after(30))
    began, ended = await recorded(any_database)
    assert (began.type, began.batch_id, began.occurred_at) == ("batch.in_progress", "batch_1", after(10))
    assert (ended.type, ended.batch_id, ended.occurred_at) == (f"batch.{status}", "batch_1", after(30))
    assert began.event_id.startswith("evt_")
    assert began.id.startswith("wh_")
    assert {began.event_id, began.id}.isdisjoint({ended.event_id, ended.id})
    assert (ended.status, ended.attempts, ended.started) == ("pending", 0, False)


async def test_a_failed_validation_and_an_end_without_files_are_events(any_database: Database) -> None:
    await create(any_database, an_endpoint())
    for id in ("batch_1", "batch_2"):
        await any_database.batches.upsert(an_order(id))
    await any_database.batch_ends.fail_validation("t", "batch_1", errors=[], total=0, at=after(5))
    await any_database.batch_ends.end_without_files("t", "batch_2", BatchStatus.FAILED, [], after(6))
    found = {row.batch_id: row for row in await recorded(any_database)}
    assert {row.type for row in found.values()} == {EventType.BATCH_FAILED}
    assert [found[id].occurred_at for id in ("batch_1", "batch_2")] == [after(5), after(6)]


async def test_a_repeated_end_is_no_second_event(any_database: Database) -> None:
    await create(any_database, an_endpoint())
    await a_running_batch(any_database)
    for _ in range(2):
        await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(30))
    assert await types(any_database) == ["batch.in_progress", "batch.completed"]


async def test_each_endpoint_gets_the_events_that_it_wants(any_database: Database) -> None:
    """One endpoint wants other events, one is disabled, one belongs to another batch, and one to another
    tenant.
    """
    await create(
        any_database,
        an_endpoint("webhook_1"),
        an_endpoint("webhook_2", events=[EventType.BATCH_COMPLETED]),
        an_endpoint("webhook_3"),
        an_endpoint("webhook_4", batch_id="batch_1", events=[EventType.BATCH_IN_PROGRESS]),
        an_endpoint("webhook_5", batch_id="batch_other"),
        an_endpoint("webhook_6", tenant="other"),
    )
    await change(any_database, EndpointChanges(enabled=False), "webhook_3")
    await a_running_batch(any_database)
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(30))
    got = {number: await types(any_database, f"webhook_{number}") for number in range(1, 6)}
    assert got == {
        1: ["batch.in_progress", "batch.completed"],
        2: ["batch.completed"],
        3: [],
        4: ["batch.in_progress"],
        5: [],
    }
    assert await types(any_database, "webhook_6", "other") == []
    one, two = await recorded(any_database, "webhook_1"), await recorded(any_database, "webhook_2")
    assert one[1].event_id == two[0].event_id


async def test_each_pause_is_an_event_and_a_repeated_pause_is_none(any_database: Database) -> None:
    await create(any_database, an_endpoint(events=[EventType.BATCH_PAUSED]))
    await a_running_batch(any_database)

    async def pause(at: float, **changes: object) -> None:
        row = WaitingRow(
            tenant="t",
            batch_id="batch_1",
            source=WaitingSource.USER,
            reason="paused",
            since=after(at),
            until=after(1000),
        )
        await any_database.waiting.report(row.model_copy(update=changes))

    await pause(20)
    await pause(21)
    await pause(22, source=WaitingSource.WORKER, reason="the backend is unavailable")
    await any_database.waiting.clear("t", "batch_1", "", WaitingSource.USER)
    await pause(30)
    assert [row.occurred_at for row in await recorded(any_database)] == [after(20), after(30)]


async def test_a_batch_is_at_risk_once_however_often_its_forecast_changes(any_database: Database) -> None:
    await create(any_database, an_endpoint(events=[EventType.BATCH_AT_RISK]))
    await a_running_batch(any_database)
    windows = [WindowFit.FITS, WindowFit.AT_RISK, WindowFit.LATE, WindowFit.FITS, WindowFit.LATE]
    for number, window in enumerate(windows):
        at = after(20 + 15 * number)
        forecast = BatchForecast(
            made_at=at, lines_per_second=1, lines_ahead=0, p50_seconds=9, p90_seconds=9, window=window
        )
        await any_database.forecasts.publish([ForecastRow("t", "batch_1", forecast)], at)
    assert [row.occurred_at for row in await recorded(any_database)] == [after(35)]


async def test_a_first_forecast_may_be_at_risk(any_database: Database) -> None:
    await create(any_database, an_endpoint(events=[EventType.BATCH_AT_RISK]))
    await a_running_batch(any_database)
    forecast = BatchForecast(
        made_at=after(20),
        lines_per_second=1,
        lines_ahead=0,
        p50_seconds=9,
        p90_seconds=9,
        window=WindowFit.LATE,
    )
    await any_database.forecasts.publish([ForecastRow("t", "batch_1", forecast)], after(20))
    assert await types(any_database) == ["batch.at_risk"]


# --- deliveries


async def test_a_delivery_is_unstarted_until_its_start_is_recorded(any_database: Database) -> None:
    delivery, table = await a_delivery(any_database), any_database.webhook_deliveries
    found = await table.unstarted(10)
    place = ("t", delivery.id, "webhook_1", delivery.batch_id)
    key = UnstartedDelivery(*place, 0, delivery.created_at, is_of_one=False)
    assert found == [key]
    await table.record_start(key._replace(replays=1))  # of a replay that is not there
    assert await table.unstarted(10) == [key]
    await table.record_start(key)
    assert await table.unstarted(10) == []


async def test_an_unstarted_delivery_says_if_its_endpoint_is_of_one_batch(any_database: Database) -> None:
    await create(any_database, an_endpoint(), an_endpoint("webhook_2", batch_id="batch_1"))
    await a_running_batch(any_database)
    found = {each.endpoint_id: each.is_of_one for each in await any_database.webhook_deliveries.unstarted(10)}
    assert found == {"webhook_1": False, "webhook_2": True}


async def test_the_event_of_an_end_waits_for_the_files(any_database: Database) -> None:
    await create(any_database, an_endpoint(events=[EventType.BATCH_EXPIRED]))
    row = await a_running_batch(any_database)
    until = row.order.deadline + timedelta(days=3650)
    table, ends = any_database.webhook_deliveries, any_database.batch_ends
    await ends.end_without_files("t", "batch_1", BatchStatus.EXPIRED, [], after(30), files_until=until)
    assert len(await recorded(any_database)) == 1
    assert await table.unstarted(10) == []
    await ends.add_files("t", "batch_1", an_outcome(BatchStatus.EXPIRED))
    assert len(await table.unstarted(10)) == 1


async def test_the_first_body_stays(any_database: Database) -> None:
    delivery, table = await a_delivery(any_database), any_database.webhook_deliveries
    assert await table.keep_body("t", delivery.id, b"first") == b"first"
    assert await table.keep_body("t", delivery.id, b"second") == b"first"
    assert await table.keep_body("t", "wh_none", b"third") == b"third"


async def test_attempts_are_listed_with_their_results(any_database: Database) -> None:
    delivery, table = await a_delivery(any_database), any_database.webhook_deliveries
    assert not await attempted(any_database, delivery, attempt(20))
    assert (await endpoint_of(any_database)).failing_since == after(20)
    assert not await attempted(any_database, delivery, attempt(30))
    assert (await endpoint_of(any_database)).failing_since == after(20)
    assert not await attempted(any_database, delivery, attempt(40, reason=""))
    assert (await endpoint_of(any_database)).failing_since is None
    listed = await table.one("t", "webhook_1", delivery.id)
    assert listed is not None
    assert (listed.delivery.status, listed.delivery.attempts) == ("delivered", 3)
    assert [(each.number, each.at, each.http_status, each.reason) for each in listed.attempts] == [
        (1, after(20), 500, "Status 500."),
        (2, after(30), 500, "Status 500."),
        (3, after(40), 204, ""),
    ]
    assert await table.one("t", "webhook_other", delivery.id) is None
    assert await table.one("other", "webhook_1", delivery.id) is None


async def test_an_endpoint_that_fails_for_72_hours_is_disabled_and_begins_anew_when_enabled(
    any_database: Database,
) -> None:
    delivery, hours = await a_delivery(any_database), 3600
    assert not await attempted(any_database, delivery, attempt(0))
    assert not await attempted(any_database, delivery, attempt(72 * hours - 1))
    assert await attempted(any_database, delivery, attempt(72 * hours), is_last=True)
    assert not await attempted(any_database, delivery, attempt(73 * hours), is_last=True)
    row = await endpoint_of(any_database)
    assert (row.disabled_at, row.failing_since) == (after(72 * hours), START)
    assert row.disabled_reason == "Every delivery has failed for 72 hours."
    assert (await recorded(any_database))[0].status == "failed"
    row = await change(any_database, EndpointChanges(enabled=True))
    assert row is not None
    assert (row.disabled_at, row.failing_since, row.disabled_reason) == (None, None, "")


async def test_a_failed_test_event_does_not_count_towards_disabling_the_endpoint(
    any_database: Database,
) -> None:
    delivery, hours = await a_delivery(any_database), 3600
    test = delivery.model_copy(update={"id": "wh_test", "event_id": "evt_test", "batch_id": TEST_BATCH})
    await any_database.webhook_deliveries.insert_test(test)
    assert not await attempted(any_database, test, attempt(0), is_last=True)
    assert not await attempted(any_database, delivery, attempt(72 * hours))
    assert (await endpoint_of(any_database)).failing_since == after(72 * hours)


async def test_a_delivery_that_has_ended_is_replayed_and_a_pending_one_is_not(any_database: Database) -> None:
    delivery, table = await a_delivery(any_database), any_database.webhook_deliveries
    first = (await table.unstarted(10))[0]
    await table.record_start(first)
    early = delivery.created_at - timedelta(hours=1)
    assert not await table.replay("t", delivery.id, lost_before=early)
    await table.give_up("t", delivery.id, "The endpoint is disabled.")
    assert (await recorded(any_database))[0].reason == "The endpoint is disabled."
    assert not await table.replay("other", delivery.id, lost_before=early)
    assert await table.replay("t", delivery.id, lost_before=early)
    assert await table.unstarted(10) == [first._replace(replays=1)]
    row = (await recorded(any_database))[0]
    assert (row.id, row.event_id, row.status, row.reason) == (delivery.id, delivery.event_id, "pending", "")


async def test_a_pending_delivery_is_replayed_once_its_workflow_must_be_lost(any_database: Database) -> None:
    """If no workflow was started for a delivery, it cannot be lost. The same is true after a replay."""
    delivery, table = await a_delivery(any_database), any_database.webhook_deliveries
    late = delivery.created_at + timedelta(hours=1)
    assert not await table.replay("t", delivery.id, lost_before=late)
    await table.record_start((await table.unstarted(10))[0])
    assert await table.replay("t", delivery.id, lost_before=late)
    assert [each.replays for each in await table.unstarted(10)] == [1]
    assert not await table.replay("t", delivery.id, lost_before=late)


async def test_giving_up_does_not_change_a_delivery_that_succeeded(any_database: Database) -> None:
    delivery = await a_delivery(any_database)
    await attempted(any_database, delivery, attempt(20, reason=""))
    await any_database.webhook_deliveries.give_up("t", delivery.id, "too late")
    assert (await recorded(any_database))[0].status == "delivered"


async def test_deliveries_are_listed_in_pages_and_by_status(any_database: Database) -> None:
    await create(any_database, an_endpoint())
    await a_running_batch(any_database)
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(30))
    table = any_database.webhook_deliveries
    page, more = await table.page("t", "webhook_1", limit=1, after=None)
    assert ([each.delivery.type for each in page], more) == (["batch.completed"], True)
    rest, more = await table.page("t", "webhook_1", limit=1, after=page[0].delivery.id)
    assert ([each.delivery.type for each in rest], more) == (["batch.in_progress"], False)
    await attempted(any_database, rest[0].delivery, attempt(40, reason=""))
    found, _ = await table.page("t", "webhook_1", limit=10, after=None, status="delivered")
    assert [each.delivery.id for each in found] == [rest[0].delivery.id]
    with pytest.raises(UnknownCursor):
        await table.page("t", "webhook_1", limit=1, after="wh_none")


async def test_a_test_event_is_a_delivery_like_others(any_database: Database) -> None:
    await create(any_database, an_endpoint())
    row = WebhookDelivery(
        tenant="t",
        id="wh_1",
        endpoint_id="webhook_1",
        batch_id="batch_0",
        event_id="evt_1",
        type=EventType.BATCH_FAILED,
        occurred_at=after(5),
        created_at=after(5),
    )
    await any_database.webhook_deliveries.insert_test(row)
    await any_database.webhook_deliveries.insert_test(
        row.model_copy(update={"id": "wh_2", "endpoint_id": "no"})
    )
    found = (await recorded(any_database))[0]
    assert found == row.model_copy(update={"created_at": found.created_at})
    assert [each.id for each in await any_database.webhook_deliveries.unstarted(10)] == ["wh_1"]


async def test_with_an_endpoint_its_deliveries_are_deleted(any_database: Database) -> None:
    delivery = await a_delivery(any_database)
    await attempted(any_database, delivery, attempt(20))
    assert await any_database.webhook_endpoints.delete("t", "webhook_1")
    assert await any_database.webhook_deliveries.get("t", delivery.id) is None
    assert await any_database.webhook_deliveries.unstarted(10) == []
    assert not await attempted(any_database, delivery, attempt(30))


async def test_old_deliveries_and_endpoints_of_deleted_batches_are_removed(any_database: Database) -> None:
    """Old deliveries are removed even if they are pending. The endpoint of a batch that still
    exists stays.
    """
    await create(
        any_database,
        an_endpoint(),
        an_endpoint("webhook_2", batch_id="batch_1"),
        an_endpoint("webhook_3", batch_id="batch_gone"),
    )
    await a_running_batch(any_database)
    await attempted(any_database, (await recorded(any_database))[0], attempt(20, reason=""))
    table, before = any_database.webhook_deliveries, START - timedelta(days=1)
    assert (await table.count_old(before), await table.remove_old(before, 10)) == (0, 0)
    later = (await recorded(any_database))[0].created_at + timedelta(hours=1)
    assert await table.count_old(later) == 3
    assert await table.remove_old(later, 10) == 3
    assert (await recorded(any_database), await recorded(any_database, "webhook_2")) == ([], [])
    assert await any_database.webhook_endpoints.get("t", "webhook_2") is not None
    assert await any_database.webhook_endpoints.get("t", "webhook_3") is None
