"""Table of holds. With a hold, an operator stops the sending of all lines of a tenant or a model."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.terms import HoldKind
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import Hold
from batchwright.database.sql import queries


class HoldsTable(Protocol):
    async def all(self) -> list[Hold]:
        """Return the tenants and models for which an operator has stopped the sending of lines.

        They are sorted by kind (tenant or model) and then by name.
        """
        ...

    async def put(self, kind: HoldKind, name: str, at: datetime) -> None:
        """Stop the sending of all lines of the tenant or model `name` at the time `at`.

        If the sending is stopped already, nothing changes.
        """
        ...

    async def remove(self, kind: HoldKind, name: str) -> None:
        """Allow the sending of lines of the tenant or model `name` again.

        If the sending is not stopped, nothing changes.
        """
        ...


@dataclass(frozen=True)
class HoldQueries:
    all: str
    put: str
    remove: str


class PostgresHolds(HoldsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(HoldQueries, "holds")

    async def all(self) -> list[Hold]:
        return [
            Hold(HoldKind(record["kind"]), record["name"], record["held_at"])
            for record in await self._connections.fetch(self._sql.all)
        ]

    async def put(self, kind: HoldKind, name: str, at: datetime) -> None:
        await self._connections.execute(self._sql.put, kind, name, at)

    async def remove(self, kind: HoldKind, name: str) -> None:
        await self._connections.execute(self._sql.remove, kind, name)
