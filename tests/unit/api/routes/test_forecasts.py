"""Forecasts of batches: when a batch will be done, and the forecast made before it began."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from batchwright.contracts.api_objects.openai import (
    BatchObject,
    BatchPage,
    ForecastObject,
    StartForecastObject,
)
from batchwright.contracts.temporal_payloads.batch import (
    StartFit,
    StartForecast,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus
from tests.fakes.api import ApiFixture, open_api, read
from tests.unit.api.routes.begun_batches import NOW, begun, store_forecast


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def forecast_of(api: ApiFixture, batch_id: str) -> ForecastObject | None:
    return read(await api.http.get(f"/v1/batches/{batch_id}"), BatchObject).x_batchwright.forecast


async def test_a_batch_shows_its_forecast_as_seen_from_now(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    assert await forecast_of(api, batch_id) is None
    await store_forecast(api, batch_id, timedelta(seconds=20))
    found = await forecast_of(api, batch_id)
    assert found is not None
    assert (found.window, found.lines_per_second, found.lines_ahead) == (WindowFit.AT_RISK, 2.5, 70)
    assert 9900 < found.remaining_seconds_p50 <= 9981
    assert 19_900 < found.remaining_seconds_p90 <= 19_981


async def test_a_list_of_batches_shows_their_forecasts(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(seconds=20))
    [listed] = read(await api.http.get("/v1/batches"), BatchPage).data
    assert listed.forecast == await forecast_of(api, batch_id)


async def test_an_old_forecast_is_not_shown(api: ApiFixture) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(minutes=2))
    assert await forecast_of(api, batch_id) is None


async def test_the_forecast_made_before_a_batch_began_stays_in_it_and_in_lists(api: ApiFixture) -> None:
    batch = await api.create()
    assert batch.start_forecast is None
    forecast = StartForecast(
        made_at=NOW,
        window=StartFit.AT_RISK,
        p50_seconds=100.4,
        p90_seconds=200.6,
        soonest_seconds=50.0,
        lines_ahead=7,
    )
    await api.database.forecasts.record_start("default", batch.id, forecast)
    expected = StartForecastObject(
        window=StartFit.AT_RISK, seconds_p50=100, seconds_p90=201, lines_ahead=7, made_at=int(NOW.timestamp())
    )
    await api.database.batch_ends.end_without_files("default", batch.id, BatchStatus.FAILED, [], NOW)
    assert read(await api.http.get(f"/v1/batches/{batch.id}"), BatchObject).start_forecast == expected
    [listed] = read(await api.http.get("/v1/batches"), BatchPage).data
    assert listed.start_forecast == expected


@pytest.mark.parametrize("call", ["x/pause", "cancel"])
async def test_a_paused_or_cancelled_batch_has_no_forecast(api: ApiFixture, call: str) -> None:
    batch_id = await begun(api, "llama")
    await store_forecast(api, batch_id, timedelta(seconds=1))
    await api.http.post(f"/v1/batches/{batch_id}/{call}")
    assert await forecast_of(api, batch_id) is None
