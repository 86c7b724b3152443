"""Fake table of forecasts, in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import BatchOrder, StartForecast, WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.database.tables.batches.batch_records import add_reported
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.database.tables.operations.forecasts import SPEED_AGE, ForecastRow, ForecastsTable, LiveWork
from batchwright.rules.forecast.model_queue import ModelSpeed
from tests.fakes.tables.rows import Rows, per_model, slices
from tests.fakes.tables.webhooks import record_event_of

_MAX_AHEAD = timedelta(minutes=1)


def _may_replace(stored_at: datetime, at: datetime) -> bool:
    return stored_at <= at - timedelta(seconds=10) or stored_at > at + _MAX_AHEAD


class MemoryForecasts(ForecastsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def work(self, at: datetime, models: Collection[str] | None = None) -> list[LiveWork]:
        found: list[LiveWork] = []
        for row in self._rows.enter().batches.values():
            order = row.order
            pause = self._rows.waiting.get((order.tenant, order.batch_id, "", WaitingSource.USER))
            if (
                row.status is not BatchStatus.IN_PROGRESS
                or row.cancel_requested_at is not None
                or row.in_progress_at is None
                or order.deadline <= at
                or (pause is not None and pause.until > at)
            ):
                continue
            quota = self._rows.quotas.get(order.tenant)
            weight = order.weight if quota is None or quota.own.weight is None else quota.own.weight
            seen = add_reported(row, per_model(slices(self._rows, order.tenant, order.batch_id)), [])
            for before, count in zip(row.models, seen.models, strict=False):
                left = count.lines - count.duplicates - count.completed - count.failed
                is_wanted = models is None or count.model in models
                if left > 0 and is_wanted and not self._rows.held(order.tenant, count.model):
                    found.append(
                        LiveWork(
                            tenant=order.tenant,
                            batch_id=order.batch_id,
                            model=count.model,
                            created_at=order.starts_at,
                            deadline=order.deadline,
                            in_progress_at=row.in_progress_at,
                            priority=order.priority,
                            weight=weight,
                            settled=count.completed + count.failed - before.completed - before.failed,
                            lines_left=left,
                            limited=self._is_limited(order),
                        )
                    )
        return found

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        written: set[str] = set()
        for row in rows:
            batch = self._rows.enter().batches.get((row.tenant, row.batch_id))
            if batch is None or batch.status is not BatchStatus.IN_PROGRESS:
                continue
            before = self._rows.forecasts.get((row.tenant, row.batch_id))
            if before is None or _may_replace(before.made_at, at):
                self._rows.forecasts[row.tenant, row.batch_id] = row.forecast
                written.add(row.batch_id)
                if row.forecast.window is not WindowFit.FITS:
                    record_event_of(self._rows, row.tenant, row.batch_id, "batch.at_risk", at)
        return frozenset(written)

    def _is_limited(self, order: BatchOrder) -> bool:
        key_id, quota = order.policy.caller.key_id, self._rows.quotas.get(order.tenant)
        caps = [each.key.max_in_flight for each in self._rows.api_keys.values() if each.key.id == key_id]
        if quota is not None:
            own = quota.own
            caps += [own.max_in_flight, own.backend_requests_per_minute, own.backend_tokens_per_minute]
        return any(cap is not None for cap in caps)

    async def publish_speeds(self, speeds: Mapping[str, ModelSpeed], at: datetime) -> None:
        stored = self._rows.enter().speeds
        for model in [each for each in stored if each not in speeds]:
            if not at - SPEED_AGE < stored[model][0] <= at + _MAX_AHEAD:
                del stored[model]
        for model, speed in speeds.items():
            if model not in stored or _may_replace(stored[model][0], at):
                stored[model] = at, speed

    async def speeds(self, models: Collection[str], at: datetime) -> dict[str, ModelSpeed]:
        stored = self._rows.enter().speeds
        return {
            model: stored[model][1]
            for model in models
            if model in stored and stored[model][0] > at - SPEED_AGE
        }

    async def record_start(self, tenant: str, batch_id: str, forecast: StartForecast) -> StartForecast | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or row.status is not BatchStatus.VALIDATING:
            return None
        kept = row.start_forecast or forecast
        self._rows.batches[tenant, batch_id] = row.model_copy(update={"start_forecast": kept})
        return kept
