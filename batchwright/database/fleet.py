"""What is counted over all tenants, for metrics."""

from dataclasses import dataclass

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import FleetView
from batchwright.database.connection import Connections
from batchwright.database.driver import Row
from batchwright.database.rows import LiveBatch, Unsettled
from batchwright.database.sql import queries


@dataclass(frozen=True)
class FleetQueries:
    live: str
    unsettled: str
    lines_left: str


class Fleet(FleetView):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(FleetQueries, "fleet")

    async def live(self) -> list[LiveBatch]:
        async with self._connections.session() as session:
            return [_live_batch(record) for record in await session.fetch(self._sql.live)]

    async def unsettled(self) -> list[Unsettled]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.unsettled)
        return [
            Unsettled(each["tenant"], each["id"], each["model"], each["lines_left"], each["expires_at"])
            for each in records
        ]

    async def lines_left(self) -> dict[str, int]:
        async with self._connections.session() as session:
            records = await session.fetch(self._sql.lines_left)
        return {record["model"]: record["lines_left"] for record in records}


def _live_batch(record: Row) -> LiveBatch:
    """Without validation: there may be thousands, several times a minute."""
    return LiveBatch(
        tenant=record["tenant"],
        id=record["id"],
        status=BatchStatus(record["shown"]),
        created_at=record["created_at"],
        expires_at=record["expires_at"],
        entered_at=record["entered_at"],
        lines=record["lines"],
        settled=record["settled"],
        begun_at=record["in_progress_at"],
    )
