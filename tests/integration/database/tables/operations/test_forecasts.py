"""The table of forecasts, and the remaining work from which forecasts are made, in PostgreSQL
and in memory.
"""

from datetime import timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    BatchPolicy,
    Caller,
    ModelCounts,
    StartFit,
    StartForecast,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.database.tables.operations.forecasts import ForecastRow, LiveWork
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.scopes import Scope
from tests.integration.database.rows import (
    START,
    a_running_batch,
    after,
    an_order,
    rows_of_others,
    slice_progress,
)


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
    page, _ = await database.batch_list.page("t", limit=100, after=None)
    assert [row.forecast for row in page if row.order.batch_id == id] == [found[0].forecast]
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
    """Batches before ingestion, finalizing, cancelled, paused, or past their deadline are not work."""
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


async def test_work_of_a_batch_depends_on_no_row_of_another_batch(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress(0, completed=1)])
    before = await any_database.forecasts.work(after(20))
    await rows_of_others(any_database)
    assert sorted(await any_database.forecasts.work(after(20))) == sorted(before)


async def test_a_model_whose_lines_all_have_results_is_no_work(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    models = [
        ModelCounts(model="a", lines=6, duplicates=2, completed=1, failed=1),
        ModelCounts(model="b", lines=1),
    ]
    await any_database.batches.start("t", "batch_1", total=7, models=models, at=after(1))
    for number, left in ((0, {"a": 1, "b": 1}), (1, {"b": 1})):
        await any_database.progress.record([slice_progress(number, completed=1)])
        found = await any_database.forecasts.work(after(20))
        assert {each.model: each.lines_left for each in found} == left


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


async def test_a_forecast_of_a_clock_that_was_ahead_is_replaced(any_database: Database) -> None:
    await a_running_batch(any_database)
    publish = any_database.forecasts.publish
    await publish([ForecastRow("t", "batch_1", forecast(3600))], after(3600))
    assert await publish([ForecastRow("t", "batch_1", forecast(3540, 50))], after(3540)) == frozenset()
    assert await publish([ForecastRow("t", "batch_1", forecast(3539, 50))], after(3539)) == {"batch_1"}
    assert await stored(any_database) == forecast(3539, 50)


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
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(40))
    assert await stored(any_database) is None


async def test_work_can_be_that_of_some_models_only(any_database: Database) -> None:
    await a_running_batch(any_database)
    found = await any_database.forecasts.work(after(20), ["b", "unknown"])
    assert [(each.model, each.lines_left) for each in found] == [("b", 6)]


async def test_work_has_the_weight_of_its_batch_unless_its_tenant_has_another(any_database: Database) -> None:
    await any_database.batches.upsert(an_order(weight=2.0))
    models = [ModelCounts(model="a", lines=1)]
    await any_database.batches.start("t", "batch_1", total=1, models=models, at=START)
    assert [each.weight for each in await any_database.forecasts.work(after(1))] == [2.0]
    await any_database.quotas.change("t", {"weight": 4.0}, START)
    assert [each.weight for each in await any_database.forecasts.work(after(1))] == [4.0]


@pytest.mark.parametrize(
    "limit", ["max_in_flight", "backend_requests_per_minute", "backend_tokens_per_minute"]
)
async def test_work_of_a_tenant_with_a_limit_of_its_own_is_limited(
    any_database: Database, limit: str
) -> None:
    await a_running_batch(any_database)
    assert {each.limited for each in await any_database.forecasts.work(after(20))} == {False}
    await any_database.quotas.change("t", {limit: 5}, START)
    assert {each.limited for each in await any_database.forecasts.work(after(20))} == {True}


async def test_work_of_an_api_key_with_a_cap_is_limited(any_database: Database) -> None:
    await any_database.tenants.create("t", START)
    key = ApiKeyRow(id="key_1", tenant="t", prefix="k1", scopes=[Scope.READ], created_at=START)
    for each in (key, key.model_copy(update={"id": "key_2", "prefix": "k2"})):
        await any_database.api_keys.insert(each, SecretHash(b"salt", b"hash"))
    await any_database.api_keys.limit("key_2", max_in_flight=2)
    policy = BatchPolicy(caller=Caller(key_id="key_1"))
    await any_database.batches.upsert(an_order(policy=policy))
    await any_database.batches.start(
        "t", "batch_1", total=1, models=[ModelCounts(model="a", lines=1)], at=START
    )
    assert [each.limited for each in await any_database.forecasts.work(after(1))] == [False]
    await any_database.api_keys.limit("key_1", max_in_flight=2)
    assert [each.limited for each in await any_database.forecasts.work(after(1))] == [True]


def speed(rate: float) -> ModelSpeed:
    return ModelSpeed(lines_per_second=rate, lines_measured=500, pending=64, mean=3.0, variation=1.5)


async def test_speeds_of_models_are_known_for_an_hour(any_database: Database) -> None:
    await any_database.forecasts.publish_speeds({"a": speed(20), "b": speed(30)}, after(0))
    await any_database.forecasts.publish_speeds({"b": speed(31)}, after(600))
    find = any_database.forecasts.speeds
    assert await find(["a", "b", "c"], after(3599)) == {"a": speed(20), "b": speed(31)}
    assert await find(["a", "b"], after(3600)) == {"b": speed(31)}
    assert await find(["a"], after(10)) == {"a": speed(20)}


async def test_a_speed_replaces_one_that_is_ten_seconds_older(any_database: Database) -> None:
    publish, find = any_database.forecasts.publish_speeds, any_database.forecasts.speeds
    await publish({"a": speed(20)}, after(0))
    await publish({"a": speed(25)}, after(9))
    assert await find(["a"], after(9)) == {"a": speed(20)}
    await publish({"a": speed(25)}, after(10))
    await publish({}, after(30))
    assert await find(["a"], after(30)) == {"a": speed(25)}


async def test_a_speed_of_a_clock_that_was_ahead_is_replaced_or_deleted(any_database: Database) -> None:
    publish, find = any_database.forecasts.publish_speeds, any_database.forecasts.speeds
    await publish({"a": speed(20), "b": speed(30)}, after(3600))
    await publish({"a": speed(25)}, after(3540))
    assert await find(["a", "b"], after(3540)) == {"a": speed(20), "b": speed(30)}
    await publish({"a": speed(25)}, after(3539))
    assert await find(["a", "b"], after(3539)) == {"a": speed(25)}


def start_forecast(at: float, *, refused: bool = False) -> StartForecast:
    return StartForecast(
        made_at=after(at),
        window=StartFit.CANNOT,
        p50_seconds=100.5,
        p90_seconds=200.5,
        soonest_seconds=50.5,
        lines_ahead=7,
        refused=refused,
    )


async def test_the_first_forecast_of_a_batch_before_it_begins_stays(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    record, first = any_database.forecasts.record_start, start_forecast(1, refused=True)
    assert await record("t", "batch_1", first) == first
    assert await record("t", "batch_1", start_forecast(9)) == first
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.start_forecast == first


async def test_a_batch_that_has_begun_gets_no_forecast_of_its_start(any_database: Database) -> None:
    await a_running_batch(any_database)
    assert await any_database.forecasts.record_start("t", "batch_1", start_forecast(20)) is None
    assert await any_database.forecasts.record_start("t", "batch_unknown", start_forecast(20)) is None
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.start_forecast is None
