"""Table of the reasons why batches wait."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from batchwright.contracts.message import Message
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries


class WaitingSource(StrEnum):
    """A source that reports why batches wait.

    All workers together are one source. A source can clear only the reasons that it reported itself.
    """

    WORKER = "worker"
    FLEET = "fleet"  # a control worker, which watches queues and workers
    USER = "user"  # a person, who has paused the batch


class WaitingRow(Message):
    """The reason why a batch or one of its models waits. If `model` is empty, the whole batch waits.

    The wait began at `since`. The reason is valid until `until`. If the same reason is reported again,
    `until` becomes later.
    """

    tenant: str
    batch_id: str
    model: str = ""
    source: WaitingSource
    reason: str
    since: datetime
    until: datetime


class WaitingReasonsTable(Protocol):
    async def report(self, waiting: WaitingRow) -> bool:
        """Store the reason why a batch waits, and return True. It replaces the reason of the same source,
        batch and model.

        If exactly this reason is already stored and still valid, only update its `until`, and return False.
        """
        ...

    async def clear(self, tenant: str, batch_id: str, model: str, source: WaitingSource) -> bool:
        """Delete the reason why this batch and model wait, as the source `source` has reported it.

        Return True, or False if there is no such reason. If `model` is empty, the reason of the whole batch
        is deleted.
        """
        ...

    async def report_pause(self, waiting: WaitingRow, change: int) -> None:
        """Store the reason that a batch is paused.

        If the batch has ended, or if a later pause or resume was stored before, change nothing.

        Args:
            change: number of the pause among all pauses and resumes of the batch, as
                `BatchesTable.claim_pause_or_resume` returned it.
        """
        ...

    async def clear_pause(self, tenant: str, batch_id: str, change: int) -> None:
        """Delete the reason that a batch is paused, because the batch was resumed.

        If a later pause or resume was stored before, change nothing.

        Args:
            change: number of the resume among all pauses and resumes of the batch, as
                `BatchesTable.claim_pause_or_resume` returned it.
        """
        ...

    async def get(self, source: WaitingSource, at: datetime) -> list[WaitingRow]:
        """Return why batches wait, as one source has reported it. Only reasons that are valid at `at` are
        returned.

        The batches of all tenants are included.
        """
        ...

    async def of_batches(self, batches: Collection[tuple[str, str]], at: datetime) -> list[WaitingRow]:
        """Return the reasons why some batches wait at the time `at`, sorted by batch and model.

        `batches` contains the tenant and the id of each batch.
        """
        ...

    async def delete_expired(self, before: datetime) -> None:
        """Delete the reasons why batches wait that were valid only until a time before `before`."""
        ...


@dataclass(frozen=True)
class WaitingQueries:
    report: str
    clear: str
    show_change: str
    get: str
    of_batches: str
    delete_expired: str


class PostgresWaitingReasons(WaitingReasonsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(WaitingQueries, "waiting_reasons")

    async def report(self, waiting: WaitingRow) -> bool:
        who = (waiting.tenant, waiting.batch_id, waiting.model, waiting.source)
        record = await self._connections.fetchrow(
            self._sql.report, *who, waiting.reason, waiting.since, waiting.until
        )
        return record is not None and record["since"] == waiting.since

    async def clear(self, tenant: str, batch_id: str, model: str, source: WaitingSource) -> bool:
        return await self._connections.fetchrow(self._sql.clear, tenant, batch_id, model, source) is not None

    async def report_pause(self, waiting: WaitingRow, change: int) -> None:
        who = waiting.tenant, waiting.batch_id
        async with self._connections.transaction() as session:
            if await session.fetchrow(self._sql.show_change, *who, change) is not None:
                what = waiting.model, waiting.source, waiting.reason, waiting.since, waiting.until
                await session.execute(self._sql.report, *who, *what)

    async def clear_pause(self, tenant: str, batch_id: str, change: int) -> None:
        async with self._connections.transaction() as session:
            if await session.fetchrow(self._sql.show_change, tenant, batch_id, change) is not None:
                await session.execute(self._sql.clear, tenant, batch_id, "", WaitingSource.USER)

    async def get(self, source: WaitingSource, at: datetime) -> list[WaitingRow]:
        records = await self._connections.fetch(self._sql.get, source, at)
        return [parse_row(WaitingRow, record) for record in records]

    async def of_batches(self, batches: Collection[tuple[str, str]], at: datetime) -> list[WaitingRow]:
        tenants, ids = [tenant for tenant, _ in batches], [id for _, id in batches]
        records = await self._connections.fetch(self._sql.of_batches, tenants, ids, at)
        return [parse_row(WaitingRow, record) for record in records]

    async def delete_expired(self, before: datetime) -> None:
        await self._connections.execute(self._sql.delete_expired, before)
