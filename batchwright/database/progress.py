"""The table of what workers tell of their slices."""

from dataclasses import dataclass

from batchwright.database.base import ProgressTable
from batchwright.database.batches import Batches
from batchwright.database.connection import Connections
from batchwright.database.rows import ModelCount, SliceProgress
from batchwright.database.sql import queries


@dataclass(frozen=True)
class ProgressQueries:
    record: str


class Progress(ProgressTable):
    def __init__(self, connections: Connections, batches: Batches) -> None:
        self._connections = connections
        self._batches = batches
        self._sql = queries(ProgressQueries, "progress")

    async def record(self, rows: list[SliceProgress]) -> None:
        if not rows:
            return
        await self._connections.execute(
            self._sql.record,
            [row.tenant for row in rows],
            [row.batch_id for row in rows],
            [row.model for row in rows],
            [row.number for row in rows],
            [row.generation for row in rows],
            [row.attempt for row in rows],
            [row.completed for row in rows],
            [row.failed for row in rows],
            [row.usage.input_tokens for row in rows],
            [row.usage.cached_tokens for row in rows],
            [row.usage.output_tokens for row in rows],
            [row.usage.reasoning_tokens for row in rows],
        )

    async def totals(self, tenant: str, batch_id: str) -> list[ModelCount]:
        row = await self._batches.get(tenant, batch_id)
        return [] if row is None else row.models
