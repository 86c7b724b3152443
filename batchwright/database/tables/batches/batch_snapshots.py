"""Reads the present state of many batches with one query, for the API's event streams."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch, parse_waiting
from batchwright.database.tables.batches.waiting_reasons import WaitingRow


class BatchKey(NamedTuple):
    tenant: str
    batch_id: str


class BatchSnapshot(NamedTuple):
    """A batch, the forecast of its end, and the reasons why it waits. The reasons are sorted by model."""

    row: BatchRow
    waiting: list[WaitingRow]


class BatchSnapshots(Protocol):
    async def read(self, keys: Collection[BatchKey], at: datetime) -> dict[BatchKey, BatchSnapshot]:
        """Return the batches `keys`, each with its forecast and the reasons why it waits at the time `at`.

        Batches that do not exist are left out.
        """
        ...


@dataclass(frozen=True)
class BatchSnapshotQueries:
    read: str


class PostgresBatchSnapshots(BatchSnapshots):
    """A reader of batches that parses only the rows that have changed since the previous `read`.

    This saves time: parsing takes longer than the query, and most batches do not change within a second.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BatchSnapshotQueries, "batch_snapshots")
        self._previous: dict[BatchKey, tuple[Row, BatchSnapshot]] = {}

    async def read(self, keys: Collection[BatchKey], at: datetime) -> dict[BatchKey, BatchSnapshot]:
        tenants, ids = [key.tenant for key in keys], [key.batch_id for key in keys]
        current: dict[BatchKey, tuple[Row, BatchSnapshot]] = {}
        for record in await self._connections.fetch(self._sql.read, tenants, ids, at):
            key = BatchKey(record["tenant"], record["id"])
            before = self._previous.get(key)
            if before is not None and before[0] == record:
                current[key] = before
            else:
                snapshot = BatchSnapshot(parse_batch(record), parse_waiting(record["waiting"]))
                current[key] = record, snapshot
        self._previous = current
        return {key: snapshot for key, (_, snapshot) in current.items()}
