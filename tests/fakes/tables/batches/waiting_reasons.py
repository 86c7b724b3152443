"""Fake table of the reasons why batches wait, in memory."""

from collections.abc import Collection
from datetime import datetime
from operator import itemgetter

from batchwright.database.tables.batches.waiting_reasons import WaitingReasonsTable, WaitingRow, WaitingSource
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.rows import Rows
from tests.fakes.tables.webhooks import record_event_of


class MemoryWaitingReasons(WaitingReasonsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def report(self, waiting: WaitingRow) -> bool:
        key = (waiting.tenant, waiting.batch_id, waiting.model, waiting.source)
        before = self._rows.enter().waiting.get(key)
        is_news = before is None or before.reason != waiting.reason or before.until <= waiting.since
        since = waiting.since if before is None or is_news else before.since
        self._rows.waiting[key] = waiting.model_copy(update={"since": since})
        if before is None and waiting.source is WaitingSource.USER and not waiting.model:
            place = (waiting.tenant, waiting.batch_id)
            record_event_of(self._rows, *place, "batch.paused", since, str(since.timestamp()))
        return is_news

    async def clear(self, tenant: str, batch_id: str, model: str, source: WaitingSource) -> bool:
        return self._rows.enter().waiting.pop((tenant, batch_id, model, source), None) is not None

    async def report_pause(self, waiting: WaitingRow, change: int) -> None:
        if self._show(waiting.tenant, waiting.batch_id, change):
            await self.report(waiting)

    async def clear_pause(self, tenant: str, batch_id: str, change: int) -> None:
        if self._show(tenant, batch_id, change):
            await self.clear(tenant, batch_id, "", WaitingSource.USER)

    def _show(self, tenant: str, batch_id: str, change: int) -> bool:
        shown, place = self._rows.enter().shown_pause_changes, (tenant, batch_id)
        row = self._rows.batches.get(place)
        if row is None or row.status not in LIVE_STATES or change <= shown[place]:
            return False
        shown[place] = change
        return True

    async def get(self, source: WaitingSource, at: datetime) -> list[WaitingRow]:
        return [
            each for each in self._rows.enter().waiting.values() if each.source is source and each.until > at
        ]

    async def of_batches(self, batches: Collection[tuple[str, str]], at: datetime) -> list[WaitingRow]:
        waiting, order = self._rows.enter().waiting, itemgetter(1, 2, 3)  # batch, model, source
        return [
            waiting[key]
            for key in sorted(waiting, key=order)
            if key[:2] in batches and waiting[key].until > at
        ]

    async def delete_expired(self, before: datetime) -> None:
        rows = self._rows.enter().waiting
        self._rows.waiting = {key: each for key, each in rows.items() if each.until >= before}
