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
        """Store the reason why a batch waits, and return True.

        The new reason replaces the stored reason of the same source, batch and model. If both reasons are
        equal and the stored reason is still valid, only change its `until`, and return False.
        """
        ...

    async def clear(self, tenant: str, batch_id: str, model: str, source: WaitingSource) -> bool:
        """Delete the reason that `source` has reported for this batch and model.

        Return True, or False if there is no such reason. If `model` is empty, delete the reason why the whole
        batch waits.
        """
        ...

    async def report_pause(self, waiting: WaitingRow, change: int) -> None:
        """Store the reason that a batch is paused.

        If the batch has ended, or if a pause or resume with this number or a greater number is already
        stored, change nothing.

        Args:
            change: number of this pause, from `BatchesTable.claim_pause_or_resume`.
        """
        ...

    async def clear_pause(self, tenant: str, batch_id: str, change: int) -> None:
        """Delete the reason that a batch is paused, because the batch was resumed.

        If the batch has ended, or if a pause or resume with this number or a greater number is already
        stored, change nothing.

        Args:
            change: number of this resume, from `BatchesTable.claim_pause_or_resume`.
        """
        ...

    async def get(self, source: WaitingSource, at: datetime) -> list[WaitingRow]:
        """Return the reasons that `source` has reported for waiting batches of all tenants.

        Only reasons that are valid at the time `at` are returned.
        """
        ...

    async def of_batches(self, batches: Collection[tuple[str, str]], at: datetime) -> list[WaitingRow]:
        """Return the reasons why some batches wait at the time `at`, sorted by batch and model.

        `batches` contains the tenant and the id of each batch.
        """
        ...

    async def delete_expired(self, before: datetime) -> None:
        """Delete the reasons why batches wait if their `until` is earlier than `before`."""
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
