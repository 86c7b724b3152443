"""The table of second chances: which batch was made of another that has ended."""

from dataclasses import dataclass

from batchwright.contracts.batch import BatchOrder, Origin
from batchwright.database.chances_base import ChancesTable
from batchwright.database.connection import Connections
from batchwright.database.errors import UnknownBatch
from batchwright.database.files import Files
from batchwright.database.rows import FileRow
from batchwright.database.sql import queries


@dataclass(frozen=True)
class ChanceQueries:
    find: str
    claim: str
    keep_longer: str


class Chances(ChancesTable):
    def __init__(self, connections: Connections, files: Files) -> None:
        self._connections = connections
        self._files = files
        self._sql = queries(ChanceQueries, "chances")

    async def find(self, tenant: str, origin: Origin) -> BatchOrder | None:
        row = await self._connections.fetchrow(self._sql.find, tenant, origin.batch_id, origin.chance)
        return None if row is None else BatchOrder.model_validate_json(row["made"])

    async def claim(self, order: BatchOrder, origin: Origin, file: FileRow | None = None) -> BatchOrder:
        async with self._connections.transaction() as session:
            taken = await session.fetchrow(
                self._sql.claim,
                order.tenant,
                origin.batch_id,
                origin.chance,
                order.batch_id,
                order.model_dump_json(),
            )
            if taken is not None:
                if file is not None:
                    await self._files.insert_by(session, file)
                await session.execute(self._sql.keep_longer, order.tenant, origin.batch_id, order.expires_at)
                return order
            row = await session.fetchrow(self._sql.find, order.tenant, origin.batch_id, origin.chance)
            if row is None:
                raise UnknownBatch(origin.batch_id)
            return BatchOrder.model_validate_json(row["made"])
