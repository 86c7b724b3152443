"""Queries for operators over the batches of all tenants.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchForecast, ModelCounts, WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.errors import UnknownCursor
from batchwright.database.records import BatchRow
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.database.tables.operations.operator_batches import BatchCount, OperatorBatchFilters
from batchwright.database.tables.operations.retention import EndedItem
from tests.integration.database.call_rows import a_rolling_order
from tests.integration.database.rows import (
    START,
    after,
    an_order,
    an_outcome,
    rows_of_others,
    slice_progress,
)

ALL = OperatorBatchFilters(forecast_since=START)


async def a_batch(database: Database, number: int, tenant: str = "t", model: str = "a") -> None:
    """Create a batch of ten lines for one model, in progress since 10 s after START."""
    order = an_order(f"batch_{number}", tenant)
    await database.batches.upsert(order)
    models = [ModelCounts(model=model, lines=10)]
    await database.batches.start(tenant, order.batch_id, total=10, models=models, at=after(10))


async def forecast(database: Database, number: int, window: WindowFit, tenant: str = "t") -> None:
    made = BatchForecast(
        made_at=after(60), lines_per_second=1, lines_ahead=0, p50_seconds=1, p90_seconds=2, window=window
    )
    await database.forecasts.publish([ForecastRow(tenant, f"batch_{number}", made)], after(60))


async def ids(database: Database, filters: OperatorBatchFilters) -> list[str]:
    page = database.operator_batches.page
    rows, _ = await page(filters, limit=10, ascending=True, after=None)
    newest_first, _ = await page(filters, limit=10, ascending=False, after=None)
    assert newest_first == rows[::-1]
    return [row.order.batch_id for row in rows]


async def test_the_owner_of_a_batch_is_its_tenant(any_database: Database) -> None:
    await a_batch(any_database, 1, "red")
    assert await any_database.operator_batches.owner("batch_1") == "red"
    assert await any_database.operator_batches.owner("batch_2") is None


async def test_the_priority_of_a_live_batch_is_changed_where_workers_read_it(any_database: Database) -> None:
    await a_batch(any_database, 1)
    assert await any_database.operator_batches.set_priority("t", "batch_1", 5) == 3
    assert await any_database.operator_batches.set_priority("t", "batch_1", 4) == 5
    (backlog,) = await any_database.fleet.backlogs(after(20))
    (work,) = await any_database.forecasts.work(after(20))
    row = await any_database.batches.upsert(an_order())  # as a workflow that still has the first priority
    assert (backlog.priority, work.priority, row.order.priority) == (4, 4, 4)


async def test_the_priority_of_a_batch_that_ended_or_is_cancelled_stays(any_database: Database) -> None:
    set_priority = any_database.operator_batches.set_priority
    for number in (1, 2):
        await a_batch(any_database, number)
    await a_batch(any_database, 4, "u")
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(output=None, error=None), after(20))
    await any_database.batches.request_cancel("t", "batch_2", after(20))
    assert [await set_priority("t", f"batch_{number}", 5) for number in (1, 2, 3)] == [None, None, None]
    assert await set_priority("u", "batch_1", 5) is await set_priority("t", "batch_4", 5) is None


async def test_the_priority_is_changed_in_every_live_state_and_only_of_this_batch(
    any_database: Database,
) -> None:
    set_priority = any_database.operator_batches.set_priority
    await any_database.batches.upsert(an_order("batch_0"))
    for number, tenant in ((1, "t"), (1, "u"), (2, "t")):
        await a_batch(any_database, number, tenant)
    await any_database.batches.start_finalizing("t", "batch_2", after(20))
    assert [await set_priority("t", f"batch_{number}", 5) for number in (0, 1, 2)] == [3, 3, 3]
    assert await set_priority("u", "batch_1", 4) == 3
    assert await set_priority("t", "batch_1", 4) == 5


async def test_a_rolling_batch_is_not_listed_and_not_counted(any_database: Database) -> None:
    operator_batches = any_database.operator_batches
    for id in ("batch_1", "batch_2", "batch_3"):
        await any_database.batches.upsert(a_rolling_order(id))
    for id in ("batch_2", "batch_3"):
        await any_database.batch_ends.end_without_files("t", id, BatchStatus.FAILED, [], after(20))
    await any_database.retention.record_sweep(EndedItem("t", "batch_3", after(20)), after(30))
    assert await ids(any_database, ALL) == []
    assert await operator_batches.counts(forecast_since=START, ended_since=START) == []


async def test_a_batch_is_shown_with_its_own_forecast_only_while_it_is_in_progress(
    any_database: Database,
) -> None:
    await a_batch(any_database, 1)
    await rows_of_others(any_database)
    await forecast(any_database, 1, WindowFit.LATE, "u")
    await forecast(any_database, 2, WindowFit.AT_RISK)

    async def shown() -> dict[tuple[str, str], WindowFit | None]:
        rows, _ = await any_database.operator_batches.page(ALL, limit=9, ascending=True, after=None)
        newest_first, _ = await any_database.operator_batches.page(ALL, limit=9, ascending=False, after=None)
        found = {_key(row): row.forecast and row.forecast.window for row in rows}
        assert {_key(row): row.forecast and row.forecast.window for row in newest_first} == found
        return found

    async def counted() -> list[int]:
        counts = await any_database.operator_batches.counts(forecast_since=START, ended_since=START)
        numbers = [(count.batches, count.at_risk, count.late) for count in counts]
        return [sum(each) for each in zip(*numbers, strict=True)]

    own, others = ("t", "batch_1"), (("t", "batch_2"), ("u", "batch_1"))
    assert await shown() == {own: None, others[0]: WindowFit.AT_RISK, others[1]: WindowFit.LATE}
    assert await counted() == [3, 1, 1]
    await any_database.batches.start_finalizing("t", "batch_2", after(70))
    await any_database.batches.request_cancel("u", "batch_1", after(70))
    assert await shown() == dict.fromkeys((own, *others))
    assert await counted() == [3, 0, 0]


def _key(row: BatchRow) -> tuple[str, str]:
    return row.order.tenant, row.order.batch_id


async def test_pages_go_through_the_batches_of_all_tenants_in_both_orders(any_database: Database) -> None:
    for number, tenant in enumerate(("red", "blue", "red")):
        await a_batch(any_database, number, tenant)
    page = any_database.operator_batches.page
    rows, more = await page(ALL, limit=2, ascending=False, after=None)
    assert ([row.order.batch_id for row in rows], more) == (["batch_2", "batch_1"], True)
    rows, more = await page(ALL, limit=2, ascending=False, after="batch_1")
    assert ([(row.order.tenant, row.order.batch_id) for row in rows], more) == ([("red", "batch_0")], False)
    rows, more = await page(ALL, limit=2, ascending=True, after="batch_0")
    assert ([row.order.batch_id for row in rows], more) == (["batch_1", "batch_2"], False)


async def test_batches_are_listed_in_the_order_of_creation_whatever_their_ids(any_database: Database) -> None:
    for id, second in (("batch_b", 1), ("batch_c", 2), ("batch_a", 3)):  # as ids of schedules' batches
        await any_database.batches.upsert(an_order(id, created_at=after(second)))
    assert await ids(any_database, ALL) == ["batch_b", "batch_c", "batch_a"]
    page = any_database.operator_batches.page
    rows, more = await page(ALL, limit=2, ascending=False, after="batch_a")
    assert ([row.order.batch_id for row in rows], more) == (["batch_c", "batch_b"], False)
    rows, more = await page(ALL, limit=1, ascending=True, after="batch_b")
    assert ([row.order.batch_id for row in rows], more) == (["batch_c"], True)


async def test_a_page_after_a_batch_that_does_not_exist_is_refused(any_database: Database) -> None:
    for ascending in (True, False):
        with pytest.raises(UnknownCursor):
            await any_database.operator_batches.page(ALL, limit=2, ascending=ascending, after="batch_9")


async def test_filters_select_by_tenant_status_and_model(any_database: Database) -> None:
    await a_batch(any_database, 1, "red")
    await a_batch(any_database, 2, "blue", "b")
    await a_batch(any_database, 3, "red")
    await any_database.batch_ends.finish("red", "batch_3", an_outcome(output=None, error=None), after(20))
    await any_database.batches.request_cancel("blue", "batch_2", after(20))
    assert await ids(any_database, ALL) == ["batch_1", "batch_2", "batch_3"]
    assert await ids(any_database, OperatorBatchFilters(START, tenant="red")) == ["batch_1", "batch_3"]
    assert await ids(any_database, OperatorBatchFilters(START, model="b")) == ["batch_2"]
    for status, found in (("in_progress", "batch_1"), ("cancelling", "batch_2"), ("completed", "batch_3")):
        assert await ids(any_database, OperatorBatchFilters(START, statuses=[BatchStatus(status)])) == [found]


async def test_the_rows_include_the_counts_that_workers_reported(any_database: Database) -> None:
    await a_batch(any_database, 1)
    await any_database.progress.record([slice_progress(0, completed=3, failed=1)])
    (row,), _ = await any_database.operator_batches.page(ALL, limit=1, ascending=True, after=None)
    assert (row.total, row.completed, row.failed) == (10, 3, 1)
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    for ascending in (True, False):
        (row,), _ = await any_database.operator_batches.page(ALL, limit=1, ascending=ascending, after=None)
        assert (row.total, row.completed, row.failed) == (10, 3, 1)


async def test_batches_are_selected_and_counted_by_a_forecast_that_is_new_enough(
    any_database: Database,
) -> None:
    for number, window in enumerate(WindowFit):
        await a_batch(any_database, number)
        await forecast(any_database, number, window)
    assert await ids(any_database, OperatorBatchFilters(START, forecast=WindowFit.AT_RISK)) == ["batch_1"]
    assert await ids(any_database, OperatorBatchFilters(after(60), forecast=WindowFit.AT_RISK)) == []
    (row,), _ = await any_database.operator_batches.page(
        OperatorBatchFilters(START, forecast=WindowFit.LATE), limit=5, ascending=True, after=None
    )
    assert row.forecast is not None
    assert row.forecast.window is WindowFit.LATE
    (count,) = await any_database.operator_batches.counts(forecast_since=START, ended_since=START)
    assert (count.batches, count.at_risk, count.late) == (3, 1, 1)
    (count,) = await any_database.operator_batches.counts(forecast_since=after(60), ended_since=START)
    assert (count.batches, count.at_risk, count.late) == (3, 0, 0)


async def test_live_batches_and_those_that_ended_lately_are_counted_by_tenant_and_status(
    any_database: Database,
) -> None:
    await any_database.batches.upsert(an_order("batch_0", created_at=START - timedelta(hours=1)))
    for number, tenant in enumerate(("t", "t", "red", "red"), start=1):
        await a_batch(any_database, number, tenant)
    await any_database.batch_ends.finish("red", "batch_3", an_outcome(output=None, error=None), after(20))
    await any_database.batches.request_cancel("t", "batch_2", after(20))
    counts = await any_database.operator_batches.counts(forecast_since=START, ended_since=after(15))
    assert sorted(counts, key=lambda count: (count.tenant, count.status)) == [
        BatchCount("red", BatchStatus.COMPLETED, 1),
        BatchCount("red", BatchStatus.IN_PROGRESS, 1, START),
        BatchCount("t", BatchStatus.CANCELLING, 1, START),
        BatchCount("t", BatchStatus.IN_PROGRESS, 1, START),
        BatchCount("t", BatchStatus.VALIDATING, 1, START - timedelta(hours=1)),
    ]
    later = await any_database.operator_batches.counts(forecast_since=START, ended_since=after(20))
    assert len(later) == len(counts) - 1


async def test_batches_that_ended_in_any_way_are_counted_even_after_they_are_swept(
    any_database: Database,
) -> None:
    ends = [status for status in BatchStatus if status.is_terminal]
    for number, status in enumerate(ends):
        await a_batch(any_database, number)
        outcome = an_outcome(status, output=None, error=None)
        await any_database.batch_ends.finish("t", f"batch_{number}", outcome, after(20))

    async def counted(since: float) -> dict[BatchStatus, int]:
        counts = await any_database.operator_batches.counts(forecast_since=START, ended_since=after(since))
        return {count.status: count.batches for count in counts}

    assert await counted(15) == dict.fromkeys(ends, 1)
    assert await counted(20) == {}
    for number in range(len(ends)):
        await any_database.retention.record_sweep(EndedItem("t", f"batch_{number}", after(20)), after(30))
    assert await counted(15) == dict.fromkeys(ends, 1)
    assert await counted(20) == {}
