"""The table of reasons why batches wait."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.sql import queries
from batchwright.database.waiting_base import Source, Waiting, WaitingTable


@dataclass(frozen=True)
class WaitingQueries:
    tell: str
    take_back: str
    of_source: str
    forget: str


class WaitingReasons(WaitingTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(WaitingQueries, "waiting")

    async def tell(self, waiting: Waiting) -> bool:
        who = (waiting.tenant, waiting.batch_id, waiting.model, waiting.source)
        record = await self._connections.fetchrow(
            self._sql.tell, *who, waiting.reason, waiting.since, waiting.until
        )
        return record is not None and record["since"] == waiting.since

    async def take_back(self, tenant: str, batch_id: str, model: str, source: Source) -> bool:
        return (
            await self._connections.fetchrow(self._sql.take_back, tenant, batch_id, model, source) is not None
        )

    async def of_source(self, source: Source, at: datetime) -> list[Waiting]:
        records = await self._connections.fetch(self._sql.of_source, source, at)
        return [Waiting.model_validate(dict(record.items())) for record in records]

    async def forget(self, before: datetime) -> None:
        await self._connections.execute(self._sql.forget, before)
