"""Table of holds: tenants and models for which operators have stopped the sending of lines."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.terms import HoldKind
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import Hold
from batchwright.database.sql import queries


class HoldsTable(Protocol):
    async def all(self) -> list[Hold]:
        """Return all holds, sorted by kind and name."""
        ...

    async def put(self, kind: HoldKind, name: str, at: datetime) -> None:
        """Hold the tenant or the model `name` from the time `at`. If it is held already, nothing changes."""
        ...

    async def remove(self, kind: HoldKind, name: str) -> None:
        """Release the tenant or the model `name`. If it is not held, nothing changes."""
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
