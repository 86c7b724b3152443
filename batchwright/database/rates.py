"""The table of rates that were changed at run time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.base import RatesTable
from batchwright.database.connection import Connections
from batchwright.database.driver import Session
from batchwright.database.rows import RateChange
from batchwright.database.sql import queries


@dataclass(frozen=True)
class RateQueries:
    all: str
    lock: str
    put: str
    remove: str


class RateChanges(RatesTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(RateQueries, "rates")

    async def all(self) -> list[RateChange]:
        async with self._connections.session() as session:
            return await self._all(session)

    async def change(
        self,
        model: str,
        requests_per_second: float | None,
        at: datetime,
        check: Callable[[list[RateChange]], None],
    ) -> list[RateChange]:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            if requests_per_second is None:
                await session.execute(self._sql.remove, model)
            else:
                await session.execute(self._sql.put, model, requests_per_second, at)
            changes = await self._all(session)
            check(changes)
            return changes

    async def _all(self, session: Session) -> list[RateChange]:
        records = await session.fetch(self._sql.all)
        return [RateChange.model_validate(dict(record.items())) for record in records]
