"""Table of forecasts, and the work from which they are made, in PostgreSQL and in memory."""

from datetime import timedelta

from batchwright.contracts.batch import BatchForecast, ModelCounts, WindowFit
from batchwright.contracts.openai import BatchStatus
from batchwright.database.database import Database
from batchwright.database.tables.forecasts import ForecastRow, LiveWork
from batchwright.database.tables.waiting_reasons import WaitingRow, WaitingSource
from tests.integration.database.rows import START, a_running_batch, after, an_order, slice_progress


def forecast(at: float, p50: float = 100.0) -> BatchForecast:
    return BatchForecast(
        made_at=after(at),
        lines_per_second=2.5,
        lines_ahead=7,
        p50_seconds=p50,
        p90_seconds=2 * p50,
        window=WindowFit.AT_RISK,
    )


async def stored(database: Database, id: str = "batch_1") -> BatchForecast | None:
    found = await database.batches.get_with_reasons("t", id, after(0))
    assert found is not None
    return found[0].forecast


async def test_work_has_settled_and_unsettled_lines_by_batch_and_model(any_database: Database) -> None:
    row = await a_running_batch(any_database)
    await any_database.quotas.change("t", {"weight": 4.0}, START)
    await any_database.progress.record([slice_progress(0, completed=1, failed=1)])
    deadline = row.order.deadline
    assert sorted(await any_database.forecasts.work(after(20))) == [
        LiveWork("t", "batch_1", "a", START, deadline, after(10), 3, 4.0, settled=2, lines_left=1),
        LiveWork("t", "batch_1", "b", START, deadline, after(10), 3, 4.0, settled=0, lines_left=6),
    ]


async def test_only_batches_that_send_lines_are_work(any_database: Database) -> None:
    """The batches are before ingestion, finalizing, cancelled, paused, and past their deadline."""
    await any_database.batches.upsert(an_order("batch_new"))
    for name in ("batch_finalizing", "batch_cancelled", "batch_paused"):
        await a_running_batch(any_database, name)
    await any_database.batches.start_finalizing("t", "batch_finalizing", after(11))
    await any_database.batches.request_cancel("t", "batch_cancelled", after(11))
    pause = WaitingRow(
        tenant="t",
        batch_id="batch_paused",
        source=WaitingSource.USER,
        reason="paused",
        since=after(11),
        until=after(11) + timedelta(days=2),
    )
    await any_database.waiting.report(pause)
    await any_database.batches.upsert(an_order("batch_late", deadline=after(20)))
    late = [ModelCounts(model="late", lines=1)]
    await any_database.batches.start("t", "batch_late", total=1, models=late, at=after(1))
    assert [each.batch_id for each in await any_database.forecasts.work(after(19))] == ["batch_late"]
    assert await any_database.forecasts.work(after(20)) == []


async def test_a_forecast_is_read_with_its_batch(any_database: Database) -> None:
    await a_running_batch(any_database)
    assert await stored(any_database) is None
    row = ForecastRow("t", "batch_1", forecast(20))
    assert await any_database.forecasts.publish([row], after(20)) == {"batch_1"}
    assert await stored(any_database) == forecast(20)


async def test_a_forecast_replaces_one_that_is_ten_seconds_older(any_database: Database) -> None:
    await a_running_batch(any_database)
    publish = any_database.forecasts.publish
    await publish([ForecastRow("t", "batch_1", forecast(20))], after(20))
    assert await publish([ForecastRow("t", "batch_1", forecast(25, 50))], after(25)) == frozenset()
    assert await publish([ForecastRow("t", "batch_1", forecast(35, 50))], after(35)) == {"batch_1"}
    assert await stored(any_database) == forecast(35, 50)


async def test_batches_that_are_unknown_or_not_in_progress_get_no_forecast(any_database: Database) -> None:
    await any_database.batches.upsert(an_order("batch_new"))
    rows = [ForecastRow("t", id, forecast(20)) for id in ("batch_new", "batch_unknown")]
    assert await any_database.forecasts.publish(rows, after(20)) == frozenset()
    assert await any_database.forecasts.publish([], after(20)) == frozenset()


async def test_the_forecast_ends_with_the_batch(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.forecasts.publish([ForecastRow("t", "batch_1", forecast(20))], after(20))
    await any_database.batches.start_finalizing("t", "batch_1", after(30))
    assert await stored(any_database) is None
    await any_database.batches.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(40))
    assert await stored(any_database) is None
