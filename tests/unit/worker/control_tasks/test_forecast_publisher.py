"""Forecasts that a control worker makes, stores, shows and reports."""

from datetime import datetime
from typing import NamedTuple, cast

import pytest
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.temporal_payloads.batch import BatchForecast, BatchOrder, ModelCounts, WindowFit
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from batchwright.rules.worker_stats import UpstreamTraffic
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.control_tasks.forecast_publisher import ForecastPublisher, temporal_forecast_signal
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import after, an_order, slice_progress

FORECAST = BatchForecast(
    made_at=after(0),
    lines_per_second=10,
    lines_ahead=0,
    p50_seconds=100,
    p90_seconds=120,
    window=WindowFit.FITS,
)


class ForecastFixture:
    """A control worker, and a model that answers each line after one second, with ten lines in flight."""

    def __init__(self) -> None:
        self.database, self.metrics = MemoryDatabase(), Metrics()
        self.reported: list[tuple[str, BatchForecast]] = []
        self.temporal_answers = True
        self.collector = self.control_worker()

    def control_worker(self) -> ForecastPublisher:
        async def report(batch_id: str, forecast: BatchForecast) -> bool:
            self.reported.append((batch_id, forecast))
            return self.temporal_answers

        return ForecastPublisher(self.database, self.metrics, report)

    async def batch(self, id: str, tenant: str = "t", lines: int = 1000, **changes: object) -> BatchOrder:
        order = an_order(id, tenant, **changes)
        await self.database.batches.upsert(order)
        models = [ModelCounts(model="a", lines=lines)]
        await self.database.batches.start(tenant, id, total=lines, models=models, at=after(0))
        return order

    async def refresh(self, at: datetime, settled: int = 0) -> None:
        """Let the first batch settle `settled` lines, then refresh the forecasts."""
        await self.database.progress.record([slice_progress(completed=settled)])
        traffic = UpstreamTraffic(
            model="a", backend="b", requests=1000, seconds=1000, squared_seconds=1000, pending=10
        )
        await self.database.workers.record_heartbeat("one:1", {}, traffic=[traffic])
        await self.collector.refresh(at)

    async def stored(self, id: str = "batch_1") -> BatchForecast | None:
        found = await self.database.batches.get_with_reasons("t", id, after(0))
        return None if found is None else found[0].forecast

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


async def test_a_forecast_is_stored_and_reported() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.refresh(after(0))
    await fixture.refresh(after(15), settled=150)
    found = await fixture.stored()
    assert found is not None
    assert found.p50_seconds == pytest.approx(85, rel=0.05)
    assert (found.made_at, found.lines_per_second, found.window) == (after(15), 10, WindowFit.FITS)
    assert [batch_id for batch_id, _ in fixture.reported] == ["batch_1"]


async def test_a_refresh_samples_the_progress_of_live_batches() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.refresh(after(15), settled=150)
    samples = await fixture.database.progress.samples("t", "batch_1")
    assert samples == [(after(0), 0), (after(15), 150)]


async def test_while_temporal_does_not_answer_one_report_is_tried_and_each_is_made_later() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.batch("batch_2")
    fixture.temporal_answers = False
    await fixture.refresh(after(0))
    fixture.reported.clear()
    await fixture.refresh(after(15), settled=150)
    tried = len(fixture.reported)
    fixture.temporal_answers = True
    await fixture.refresh(after(30), settled=300)
    assert tried == 1
    assert {batch_id for batch_id, _ in fixture.reported[tried:]} == {"batch_1", "batch_2"}


async def test_metrics_count_forecasts_by_priority() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1", priority=1, deadline=after(60))
    await fixture.batch("batch_2", tenant="u")
    await fixture.refresh(after(0))
    assert fixture.value("forecast_batches", priority="1", window="late") == 1
    assert fixture.value("forecast_batches", priority="3", window="fits") == 1
    slack = fixture.value("forecast_slack_seconds", priority="1")
    assert slack is not None
    assert slack < 0


async def test_the_slack_of_a_priority_is_that_of_its_most_urgent_batch() -> None:
    fixture = ForecastFixture()
    for number, seconds in enumerate((4000, 3000, 5000), 1):
        await fixture.batch(f"batch_{number}", deadline=after(seconds))
    await fixture.refresh(after(0))
    slack = fixture.value("forecast_slack_seconds", priority="3")
    assert slack is not None
    assert 2000 < slack < 3000


async def test_a_batch_without_news_does_not_keep_others_from_being_reported() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.refresh(after(0))
    await fixture.batch("batch_2")
    await fixture.batch("batch_3")
    await fixture.refresh(after(15), settled=150)
    assert [batch_id for batch_id, _ in fixture.reported] == ["batch_1", "batch_2", "batch_3"]


async def test_a_tenants_weight_of_now_counts() -> None:
    fixture = ForecastFixture()
    await fixture.database.quotas.change("t", {"weight": 9.0}, after(0))
    await fixture.batch("batch_1")
    await fixture.batch("batch_2", tenant="u")
    await fixture.refresh(after(0))
    found = await fixture.stored()
    assert found is not None
    assert found.p50_seconds == pytest.approx(110, rel=0.05)


async def test_only_one_of_two_control_workers_reports() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.refresh(after(0))
    await fixture.control_worker().refresh(after(5))
    assert len(fixture.reported) == 1


async def test_a_paused_batch_is_not_forecast_and_others_do_not_wait_for_it() -> None:
    fixture = ForecastFixture()
    order = await fixture.batch("batch_1")
    await fixture.batch("batch_2")
    pause = WaitingRow(
        tenant="t",
        batch_id="batch_1",
        source=WaitingSource.USER,
        reason="paused",
        since=after(0),
        until=order.deadline,
    )
    await fixture.database.waiting.report(pause)
    await fixture.refresh(after(1))
    assert await fixture.stored() is None
    other = await fixture.stored("batch_2")
    assert other is not None
    assert (other.lines_ahead, fixture.value("forecast_batches", priority="3", window="fits")) == (0, 1)


async def test_ended_batches_leave_no_series_behind() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    await fixture.refresh(after(0))
    await fixture.database.batches.start_finalizing("t", "batch_1", after(10))
    await fixture.refresh(after(15))
    assert fixture.value("forecast_batches", priority="3", window="fits") is None
    assert fixture.value("forecast_slack_seconds", priority="3") is None


async def test_an_unavailable_database_is_reported_to_the_caller() -> None:
    fixture = ForecastFixture()
    fixture.database.rows.failing = DatabaseUnavailable("refused")
    with pytest.raises(DatabaseUnavailable):
        await fixture.collector.refresh(after(0))


async def test_the_speed_of_a_model_is_stored_after_a_minute_of_waiting_lines() -> None:
    fixture = ForecastFixture()
    await fixture.batch("batch_1")
    for step in range(4):
        await fixture.refresh(after(15 * step), settled=150 * step)
    assert await fixture.database.forecasts.speeds(["a"], after(45)) == {}
    await fixture.refresh(after(60), settled=600)
    speed = (await fixture.database.forecasts.speeds(["a"], after(60)))["a"]
    assert speed.lines_per_second == pytest.approx(10)
    assert speed.mean == 1.0


async def test_the_speed_that_a_tenant_with_a_cap_had_is_not_stored() -> None:
    fixture = ForecastFixture()
    await fixture.database.quotas.change("t", {"max_in_flight": 10}, after(0))
    await fixture.batch("batch_1")
    for step in range(6):
        await fixture.refresh(after(15 * step), settled=150 * step)
    assert await fixture.database.forecasts.speeds(["a"], after(90)) == {}


class Run(NamedTuple):
    """The description of a workflow without a deadline, as Temporal returns it."""

    history_length: int
    start_time: datetime = after(0)
    typed_search_attributes: TypedSearchAttributes = TypedSearchAttributes.empty


class SignalledClient:
    """A client of Temporal whose workflows record the signals that they get, or raise `error` instead."""

    def __init__(self, *, events: int = 9, error: RPCError | None = None) -> None:
        self.signals: list[tuple[str, str, BatchForecast]] = []
        self._events, self._error = events, error

    def get_workflow_handle(self, batch_id: str) -> "SignalledClient":
        self._batch_id = batch_id
        return self

    async def describe(self, **_: object) -> Run:
        return Run(self._events)

    async def signal(self, name: str, forecast: BatchForecast, **_: object) -> None:
        if self._error is not None:
            raise self._error
        self.signals.append((self._batch_id, name, forecast))


@pytest.mark.parametrize(("events", "sends"), [(9, True), (50_000, False)])
async def test_a_forecast_is_a_signal_to_the_workflow_of_its_batch_if_its_history_has_room(
    events: int, sends: bool
) -> None:
    client = SignalledClient(events=events)
    assert await temporal_forecast_signal(cast("Client", client))("batch_1", FORECAST)
    assert client.signals == ([("batch_1", "forecast", FORECAST)] if sends else [])


@pytest.mark.parametrize(
    ("status", "is_done"),
    [
        (RPCStatusCode.UNAVAILABLE, False),
        (RPCStatusCode.DEADLINE_EXCEEDED, False),
        (RPCStatusCode.CANCELLED, False),
        (RPCStatusCode.NOT_FOUND, True),
    ],
)
async def test_a_forecast_is_sent_again_only_if_temporal_did_not_answer(
    status: RPCStatusCode, is_done: bool
) -> None:
    client = SignalledClient(error=RPCError("no", status, b""))
    assert await temporal_forecast_signal(cast("Client", client))("batch_1", FORECAST) is is_done
