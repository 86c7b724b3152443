"""Fake of the queries over the batches of all tenants for operators, in memory."""

from collections import defaultdict
from datetime import datetime

from batchwright.contracts.temporal_payloads.batch import BatchForecast, WindowFit
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.errors import UnknownCursor
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.batch_records import add_reported
from batchwright.database.tables.batches.custom_ids import FoundBatches
from batchwright.database.tables.operations.operator_batches import (
    BatchCount,
    OperatorBatches,
    OperatorBatchFilters,
)
from batchwright.rules.batch_states import LIVE_STATES, visible_status
from tests.fakes.tables.batches.custom_ids import found_among
from tests.fakes.tables.rows import Rows, per_model, slices, usage_per_model


class MemoryOperatorBatches(OperatorBatches):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def owner(self, batch_id: str) -> str | None:
        return next((tenant for tenant, id in self._rows.enter().batches if id == batch_id), None)

    async def set_priority(self, tenant: str, batch_id: str, priority: int) -> int | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or row.status not in LIVE_STATES or row.cancel_requested_at is not None:
            return None
        order = row.order.model_copy(update={"priority": priority})
        self._rows.batches[tenant, batch_id] = row.model_copy(update={"order": order})
        return row.order.priority

    async def page(
        self, filters: OperatorBatchFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[BatchRow], bool]:
        found = self._listed(filters, ascending=ascending, after=after)
        return found[:limit], len(found) > limit

    async def search(
        self,
        custom_id: str,
        filters: OperatorBatchFilters,
        *,
        limit: int,
        ascending: bool,
        after: str | None,
    ) -> FoundBatches:
        listed = self._listed(filters, ascending=ascending, after=after)
        return found_among(listed, self._rows, custom_id, limit)

    def _listed(self, filters: OperatorBatchFilters, *, ascending: bool, after: str | None) -> list[BatchRow]:
        rows = sorted(self._rows.enter().batches.values(), key=_position, reverse=not ascending)
        cursor = None
        if after is not None:
            cursor = next((_position(row) for row in rows if row.order.batch_id == after), None)
            if cursor is None:
                raise UnknownCursor(after)
        seen = [
            self._seen(row, filters.forecast_since)
            for row in rows
            if row.order.policy.rolling is None
            and (cursor is None or (_position(row) > cursor if ascending else _position(row) < cursor))
        ]
        return [row for row in seen if _matches(row, filters)]

    async def counts(self, *, forecast_since: datetime, ended_since: datetime) -> list[BatchCount]:
        groups: dict[tuple[str, BatchStatus], list[BatchRow]] = defaultdict(list)
        for row in self._rows.enter().batches.values():
            is_counted = row.status in LIVE_STATES or _ended_at(row) > ended_since
            if is_counted and row.order.policy.rolling is None:
                groups[row.order.tenant, _status(row)].append(self._seen(row, forecast_since))
        return [_count(tenant, status, rows) for (tenant, status), rows in groups.items()]

    def _seen(self, row: BatchRow, forecast_since: datetime) -> BatchRow:
        if row.status not in LIVE_STATES:
            return row
        reported = slices(self._rows, row.order.tenant, row.order.batch_id)
        usage = sum((of.usage for of in reported), Usage())
        used = usage_per_model(reported)
        changes = {"usage": usage, "model_usage": used, "forecast": self._forecast(row, forecast_since)}
        return add_reported(row, per_model(reported), []).model_copy(update=changes)

    def _forecast(self, row: BatchRow, since: datetime) -> BatchForecast | None:
        found = self._rows.forecasts.get((row.order.tenant, row.order.batch_id))
        is_fresh = found is not None and found.made_at > since
        return found if is_fresh and _status(row) is BatchStatus.IN_PROGRESS else None


def _position(row: BatchRow) -> tuple[datetime, str]:
    return row.order.created_at, row.order.batch_id


def _matches(row: BatchRow, filters: OperatorBatchFilters) -> bool:
    return (
        filters.tenant in (None, row.order.tenant)
        and (filters.statuses is None or _status(row) in filters.statuses)
        and (filters.model is None or any(count.model == filters.model for count in row.models))
        and filters.forecast in (None, row.forecast and row.forecast.window)
    )


def _count(tenant: str, status: BatchStatus, rows: list[BatchRow]) -> BatchCount:
    windows = [row.forecast.window for row in rows if row.forecast is not None]
    return BatchCount(
        tenant=tenant,
        status=status,
        batches=len(rows),
        oldest=None if status.is_terminal else min(row.order.created_at for row in rows),
        at_risk=windows.count(WindowFit.AT_RISK),
        late=windows.count(WindowFit.LATE),
    )


def _status(row: BatchRow) -> BatchStatus:
    return visible_status(row.status, cancel_requested=row.cancel_requested_at is not None)


def _ended_at(row: BatchRow) -> datetime:
    ends = (row.completed_at, row.failed_at, row.expired_at, row.cancelled_at)
    return next(end for end in ends if end is not None)
