"""Table of rate limits that operators set at run time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.driver import Session
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries


class RatesTable(Protocol):
    """Rate limits of models. A limit applies to the requests of all tenants together."""

    async def all(self) -> list[RateChange]: ...

    async def change(
        self,
        model: str,
        requests_per_second: float | None,
        at: datetime,
        check: Callable[[list[RateChange]], None],
    ) -> list[RateChange]:
        """Set the rate limit of a model at run time. Return all rate limits that are set in this way.

        Args:
            model: name of the model; empty for the limit over all models.
            requests_per_second: the limit. `0` means no limit. None deletes the limit that was set at run
                time, so that the limit in the settings applies again.
            check: called with all limits before they are stored; raises an exception to reject the change.
        """
        ...


@dataclass(frozen=True)
class RateQueries:
    all: str
    lock: str
    put: str
    remove: str


class PostgresRates(RatesTable):
    def __init__(self, connections: ConnectionPool) -> None:
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
        return [parse_row(RateChange, record) for record in records]
