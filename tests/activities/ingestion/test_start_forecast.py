"""Ingestion forecasts when a batch will be finished.

If the tenant's setting says so, ingestion refuses a batch that would be finished too late.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.temporal_payloads.batch import ModelCounts, StartFit, StartForecast
from batchwright.contracts.terms import BatchStatus, WindowTooShort
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.storage.base import StorageUnavailable
from tests.activities.ingestion.fresh_batch import TENANT, FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage, MemoryWriter
from tests.integration.database.rows import START, an_order

LINES = [a_line(str(number)) for number in range(40)]
HOUR = timedelta(hours=1)


class ReadOnlyStorage(MemoryStorage):
    """A storage with the objects of another storage. It refuses writes."""

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__()
        self.objects = storage.objects

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        raise StorageUnavailable("the disk is full")
        yield

    async def put(self, key: str, data: bytes) -> None:
        raise StorageUnavailable("the disk is full")


async def a_slow_batch(rule: WindowTooShort | None = WindowTooShort.REFUSE) -> FreshBatch:
    """Return a batch of 40 lines whose model takes ten minutes for each, and which must be finished in an
    hour.

    Args:
        rule: what happens to a batch that will be late; None if the tenant has no such setting.
    """
    batch = await a_batch(*LINES, window=HOUR)
    await batch.database.quotas.change(TENANT, {"window_too_short": rule}, START)
    await measure(batch, lines_per_second=1 / 600)
    return batch


async def measure(batch: FreshBatch, lines_per_second: float, age: timedelta = timedelta(0)) -> None:
    speed = ModelSpeed(
        lines_per_second=lines_per_second, lines_measured=1000, pending=1, mean=1.0, variation=1.0
    )
    await batch.database.forecasts.publish_speeds({"a": speed}, datetime.now(UTC) - age)


async def start_forecast(batch: FreshBatch) -> StartForecast | None:
    return (await batch.row()).start_forecast


async def test_a_batch_that_cannot_be_done_in_time_fails_and_writes_nothing() -> None:
    batch = await a_slow_batch()
    assert (await batch.ingest()).failed
    row = await batch.row()
    assert (row.status, row.total, batch.written()) == (BatchStatus.FAILED, 40, [])
    [error] = row.errors
    assert (error.code, error.param) == ("completion_window_too_short", "completion_window")
    assert "cannot be done within its completion window of 24h" in error.message
    assert "it takes at least " in error.message
    assert "and probably 6 h " in error.message
    assert "but 60 min of the window were left" in error.message
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 0
    counted = batch.metrics.registry.get_sample_value
    assert counted("batchwright_quota_refusals_total", {"tenant": TENANT, "quota": "window_too_short"}) == 1


@pytest.mark.parametrize("rule", [WindowTooShort.ACCEPT, None])
async def test_such_a_batch_is_accepted_if_its_tenants_batches_are_not_refused(
    rule: WindowTooShort | None,
) -> None:
    batch = await a_slow_batch(rule)
    assert not (await batch.ingest()).failed
    forecast = await start_forecast(batch)
    assert forecast is not None
    assert (forecast.window, forecast.refused) == (StartFit.CANNOT, False)


async def test_a_batch_that_may_be_late_is_accepted() -> None:
    batch = await a_slow_batch()
    batch.order = batch.order.model_copy(update={"deadline": batch.order.created_at + 5 * HOUR})
    assert not (await batch.ingest()).failed
    forecast = await start_forecast(batch)
    assert forecast is not None
    assert forecast.window is StartFit.AT_RISK


async def test_a_batch_that_will_be_done_in_time_is_accepted_and_has_its_forecast() -> None:
    batch = await a_slow_batch()
    await measure(batch, lines_per_second=10.0, age=timedelta(seconds=-10))
    assert not (await batch.ingest()).failed
    forecast = await start_forecast(batch)
    assert forecast is not None
    assert forecast.window is StartFit.FITS
    assert forecast.p50_seconds < forecast.p90_seconds < 60


@pytest.mark.parametrize("age", [None, timedelta(hours=2)], ids=["never measured", "two hours ago"])
async def test_a_batch_is_accepted_if_the_speed_of_its_model_is_not_known(age: timedelta | None) -> None:
    batch = await a_batch(*LINES, window=HOUR)
    await batch.database.quotas.change(TENANT, {"window_too_short": WindowTooShort.REFUSE}, START)
    if age is not None:
        await measure(batch, lines_per_second=1 / 600, age=age)
    assert not (await batch.ingest()).failed
    assert await start_forecast(batch) is None


async def test_lines_of_other_tenants_come_first_by_their_shares() -> None:
    batch = await a_batch(*LINES, window=HOUR)
    await measure(batch, lines_per_second=0.1)
    other = an_order("batch_other", "other", deadline=batch.order.deadline)
    await batch.database.batches.upsert(other)
    models = [ModelCounts(model="a", lines=500), ModelCounts(model="b", lines=500)]
    await batch.database.batches.start("other", "batch_other", total=1000, models=models, at=START)
    await batch.ingest()
    forecast = await start_forecast(batch)
    assert forecast is not None
    assert forecast.lines_ahead == pytest.approx(39, abs=1)


async def test_an_attempt_after_a_crash_decides_as_the_first_one_did() -> None:
    """Between the two attempts, the model becomes fast, and the tenant's setting is removed, so that late
    batches are accepted.
    """
    batch = await a_slow_batch()
    await batch.ingest()
    refused = await start_forecast(batch)
    rows = batch.database.rows.batches
    key = TENANT, batch.order.batch_id
    rows[key] = rows[key].model_copy(update={"status": BatchStatus.VALIDATING, "errors": []})
    await measure(batch, lines_per_second=1000.0, age=timedelta(seconds=-10))
    await batch.database.quotas.change(TENANT, {"window_too_short": None}, START)
    assert (await batch.ingest()).failed
    assert await start_forecast(batch) == refused


async def test_a_batch_that_was_accepted_once_is_not_refused_by_a_later_attempt() -> None:
    batch = await a_slow_batch(WindowTooShort.ACCEPT)
    batch.storage, storage = ReadOnlyStorage(batch.storage), batch.storage
    with pytest.raises(ApplicationError):
        await batch.ingest()
    batch.storage = storage
    await batch.database.quotas.change(TENANT, {"window_too_short": WindowTooShort.REFUSE}, START)
    assert not (await batch.ingest()).failed
    assert not (await batch.ingest()).failed


async def test_a_batch_that_has_begun_without_a_forecast_is_not_refused_by_a_later_attempt() -> None:
    batch = await a_batch(*LINES, window=HOUR)
    await batch.ingest()
    await batch.database.quotas.change(TENANT, {"window_too_short": WindowTooShort.REFUSE}, START)
    await measure(batch, lines_per_second=1 / 600)
    assert not (await batch.ingest()).failed
    assert (await batch.row()).status is BatchStatus.IN_PROGRESS


async def test_a_batch_whose_window_is_over_expires_instead_of_being_refused() -> None:
    batch = await a_slow_batch()
    past = batch.order.created_at - timedelta(seconds=60)
    batch.order = batch.order.model_copy(update={"deadline": past})
    assert (await batch.ingest()).deadline_passed
    assert await start_forecast(batch) is None
