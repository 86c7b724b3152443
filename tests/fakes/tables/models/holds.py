"""Fake table of holds, in memory. It passes the tests of the PostgreSQL table."""

from datetime import datetime

from batchwright.contracts.terms import HoldKind
from batchwright.database.records import Hold
from batchwright.database.tables.models.holds import HoldsTable
from tests.fakes.tables.rows import Rows


class MemoryHolds(HoldsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def all(self) -> list[Hold]:
        holds = self._rows.enter().holds
        return [Hold(*key, holds[key]) for key in sorted(holds)]

    async def put(self, kind: HoldKind, name: str, at: datetime) -> None:
        self._rows.enter().holds.setdefault((kind, name), at)

    async def remove(self, kind: HoldKind, name: str) -> None:
        self._rows.enter().holds.pop((kind, name), None)
