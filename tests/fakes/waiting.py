"""Reasons why batches wait, in memory."""

from datetime import datetime

from batchwright.database.waiting_base import Source, Waiting, WaitingTable
from tests.fakes.rows import Rows


class MemoryWaiting(WaitingTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def tell(self, waiting: Waiting) -> bool:
        key = (waiting.tenant, waiting.batch_id, waiting.model, waiting.source)
        told = self._rows.enter().waiting.get(key)
        is_news = told is None or told.reason != waiting.reason or told.until <= waiting.since
        since = waiting.since if told is None or is_news else told.since
        self._rows.waiting[key] = waiting.model_copy(update={"since": since})
        return is_news

    async def take_back(self, tenant: str, batch_id: str, model: str, source: Source) -> bool:
        return self._rows.enter().waiting.pop((tenant, batch_id, model, source), None) is not None

    async def of_source(self, source: Source, at: datetime) -> list[Waiting]:
        return [
            each for each in self._rows.enter().waiting.values() if each.source is source and each.until > at
        ]

    async def forget(self, before: datetime) -> None:
        told = self._rows.enter().waiting
        self._rows.waiting = {key: each for key, each in told.items() if each.until >= before}
