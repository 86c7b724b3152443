"""Batches in progress and ended batches, for tests of routes."""

from datetime import UTC, datetime, timedelta

import httpx

from batchwright.contracts.temporal_payloads.batch import BatchForecast, ModelCounts, WindowFit
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.database.tables.operations.forecasts import ForecastRow
from tests.fakes.api import ApiFixture

ENDS = [status for status in BatchStatus if status.is_terminal]
NOW = datetime.now(UTC)


async def begun(api: ApiFixture, *models: str) -> str:
    """Create a batch in progress with ten lines for each model, and return its id."""
    batch = await api.create()
    counts = [ModelCounts(model=model, lines=10) for model in models]
    await api.database.batches.start("default", batch.id, total=10 * len(models), models=counts, at=NOW)
    return batch.id


async def ended(api: ApiFixture, status: BatchStatus) -> str:
    batch_id = await begun(api, "llama")
    outcome = BatchOutcome(status=status, completed=8, failed=2, usage=Usage(input_tokens=5, output_tokens=7))
    await api.database.batch_ends.finish("default", batch_id, outcome, NOW)
    return batch_id


async def pause(api: ApiFixture, batch_id: str) -> httpx.Response:
    return await api.http.post(f"/v1/batches/{batch_id}/x/pause")


async def resume(api: ApiFixture, batch_id: str) -> httpx.Response:
    return await api.http.post(f"/v1/batches/{batch_id}/x/resume")


async def store_forecast(api: ApiFixture, batch_id: str, age: timedelta) -> None:
    made_at = datetime.now(UTC) - age
    forecast = BatchForecast(
        made_at=made_at,
        lines_per_second=2.5,
        lines_ahead=70,
        p50_seconds=10_000,
        p90_seconds=20_000,
        window=WindowFit.AT_RISK,
    )
    await api.database.forecasts.publish([ForecastRow("default", batch_id, forecast)], made_at)
