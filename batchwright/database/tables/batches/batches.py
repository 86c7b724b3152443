"""Table of batches. Each change of a status requires a certain earlier status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.database.driver import Session
from batchwright.database.errors import UnknownBatch
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import (
    dump_error_counts,
    dump_metadata,
    dump_models,
    dump_prices,
    parse_batch,
    parse_waiting,
)
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.rules.batch_filters import (
    endpoint_tag,
    metadata_tags,
    model_tags,
)
from batchwright.rules.json_text import storable_json


class BatchesTable(Protocol):
    """Table of the batches of all tenants.

    A method that changes the status requires a certain earlier status. If the row has another status, the
    method changes nothing. A call can therefore be repeated safely. The time of a later status is never
    before the time of an earlier status, even if the clocks of workers differ.
    """

    async def upsert(self, order: BatchOrder) -> BatchRow:
        """Insert the row of a new batch with the status `validating`, and return it.

        If the batch has a row already, return that row unchanged.

        Raises UnknownBatch if the batch was deleted.
        """
        ...

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None: ...

    async def get_with_reasons(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[WaitingRow]] | None:
        """Return a batch with the forecast of its end, and the reasons why it waits at the time `at`.

        The reasons are sorted by model. The result is None if the tenant has no such batch.
        """
        ...

    async def request_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        """Record that a client has requested to cancel a batch that has not ended. `cancel_requested_at`
        becomes `at`.

        If a cancel was requested before, the time of the first request stays. Return the current row, or None
        if the tenant has no such batch.
        """
        ...

    async def set_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> bool:
        """Set the cap on the cost of a batch, and return True. If `max_cost` is None, remove the cap.

        `max_cost` is decimal text in the currency of the models' prices. Return False without a change if the
        batch is not in progress, is being cancelled, or has reached its cap (`ProgressTable.reach_cap`).
        """
        ...

    async def claim_pause_or_resume(self, tenant: str, batch_id: str, max_changes: int) -> int | None:
        """Reserve the number of a new pause or resume of a batch, and return this number.

        All pauses and resumes of a batch are numbered together, from 1. Store nothing and return None if the
        batch has ended, or if `max_changes` numbers are already reserved. Numbers that were released with
        `release_pause_or_resume` do not count.
        """
        ...

    async def release_pause_or_resume(self, tenant: str, batch_id: str) -> None:
        """Record that a pause or resume of a batch has failed. If the batch has ended, do nothing.

        A failed pause or resume does not count towards `max_changes` of `claim_pause_or_resume`. The number
        of the failed pause or resume is not used again.
        """
        ...

    async def record_output_copy(self, tenant: str, batch_id: str, copy: OutputCopy) -> None:
        """Record the result of an attempt to copy the files of a batch to its output location.

        The client has chosen the output location, which is outside of Batchwright's own storage. Change
        nothing in these cases:

        - There is no such batch, the batch has not ended, or it has no output location.
        - The stored state of the copy is `written`.
        - The stored state of the copy is `failed`, and `copy` has another state than `written`. The state
          `written` replaces `failed`, because a copy may succeed after the workflow has stopped waiting for
          it.
        """
        ...

    async def start(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCounts],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
        began_at: datetime | None = None,
        errors: list[ErrorCount] | None = None,
        prices: dict[str, PriceConfig] | None = None,
    ) -> bool:
        """Change a batch's status from `validating` to `in_progress`, and store the counts from its input.

        Return True, or False without a change if the status is not `validating`.

        Args:
            total: number of lines of the input.
            models: counts of lines by model.
            at: time of the change.
            unserved: number of lines that failed in ingestion (when the input was read), for example because
                no backend serves their model.
            completed: number of lines that ingestion completed with results from another batch.
            began_at: time when a worker began to read the input; None if it is unknown.
            errors: numbers of lines that failed in ingestion, by code and model; None if none failed.
            prices: prices by model, without models that have no prices. The batch keeps them until its end.
        """
        ...

    async def add_attempt(self, tenant: str, batch_id: str, prefix: str, size: int) -> None:
        """Record that an attempt to read a batch's input will store about `size` bytes in object storage.

        The keys of the stored objects start with `prefix`. The bytes count towards the tenant's quota of
        stored bytes until `remove_attempt` is called or the batch ends.
        """
        ...

    async def remove_attempt(self, tenant: str, batch_id: str, prefix: str) -> None:
        """Remove the record that `add_attempt` has stored for `prefix`.

        Its bytes then no longer count towards the tenant's quota of stored bytes. Before the call, delete all
        objects in storage whose keys start with `prefix`.
        """
        ...

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        """Change a batch's status from `in_progress` to `finalizing`, before its output files are written.

        Return True, or False without a change if the status is not `in_progress`.
        """
        ...


@dataclass(frozen=True)
class BatchQueries:
    pin_input: str
    insert: str
    get: str
    get_with_reasons: str
    request_cancel: str
    set_max_cost: str
    claim_pause_or_resume: str
    release_pause_or_resume: str
    record_output_copy: str
    start: str
    start_finalizing: str
    add_attempt: str
    remove_attempt: str


class PostgresBatches(BatchesTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BatchQueries, "batches")

    async def upsert(self, order: BatchOrder) -> BatchRow:
        # Each step of a batch upserts it, and only the first one inserts the row.
        row = await self.get(order.tenant, order.batch_id)
        if row is not None:
            return row
        async with self._connections.transaction() as session:
            await session.fetchrow(self._sql.pin_input, order.tenant, order.input_file_id)
            await session.execute(
                self._sql.insert,
                order.tenant,
                order.batch_id,
                order.input_file_id,
                order.endpoint,
                order.completion_window,
                dump_metadata(order.metadata),
                order.output_expires_after_seconds,
                order.weight,
                order.priority,
                order.max_cost,
                storable_json(order.policy.model_dump_json()),
                order.created_at,
                order.deadline,
                order.origin and order.origin.model_dump_json(),
                [*metadata_tags((order.metadata or {}).items()), endpoint_tag(order.endpoint)],
                order.start_at,
                order.input_location,
                order.output_location,
            )
            return await self.read_by(session, order.tenant, order.batch_id)

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        if not batch_id.isprintable():  # PostgreSQL stores no NUL characters, so no row can match
            return None
        record = await self._connections.fetchrow(self._sql.get, tenant, batch_id)
        return None if record is None else parse_batch(record)

    async def get_with_reasons(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[WaitingRow]] | None:
        if not batch_id.isprintable():
            return None
        record = await self._connections.fetchrow(self._sql.get_with_reasons, tenant, batch_id, at)
        return None if record is None else (parse_batch(record), parse_waiting(record["waiting"]))

    async def request_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        if not batch_id.isprintable():
            return None
        await self._connections.execute(self._sql.request_cancel, tenant, batch_id, at)
        return await self.get(tenant, batch_id)

    async def set_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> bool:
        return await self._moved(self._sql.set_max_cost, tenant, batch_id, max_cost)

    async def claim_pause_or_resume(self, tenant: str, batch_id: str, max_changes: int) -> int | None:
        record = await self._connections.fetchrow(
            self._sql.claim_pause_or_resume, tenant, batch_id, max_changes
        )
        return None if record is None else record["pause_changes"]

    async def release_pause_or_resume(self, tenant: str, batch_id: str) -> None:
        await self._connections.execute(self._sql.release_pause_or_resume, tenant, batch_id)

    async def record_output_copy(self, tenant: str, batch_id: str, copy: OutputCopy) -> None:
        stored = storable_json(copy.model_dump_json())
        await self._connections.execute(self._sql.record_output_copy, tenant, batch_id, stored)

    async def start(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCounts],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
        began_at: datetime | None = None,
        errors: list[ErrorCount] | None = None,
        prices: dict[str, PriceConfig] | None = None,
    ) -> bool:
        counts, failed = dump_models(models), dump_error_counts(errors or [])
        tags = model_tags(count.model for count in models)
        row = (total, counts, unserved, completed, began_at, failed, tags, dump_prices(prices or {}))
        return await self._moved(self._sql.start, tenant, batch_id, at, *row)

    async def add_attempt(self, tenant: str, batch_id: str, prefix: str, size: int) -> None:
        await self._connections.execute(self._sql.add_attempt, tenant, batch_id, prefix, size)

    async def remove_attempt(self, tenant: str, batch_id: str, prefix: str) -> None:
        await self._connections.execute(self._sql.remove_attempt, tenant, batch_id, prefix)

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        return await self._moved(self._sql.start_finalizing, tenant, batch_id, at)

    async def _moved(self, sql: str, *args: object) -> bool:
        return await self._connections.fetchrow(sql, *args) is not None

    async def read_by(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        """Return the row of a batch as the transaction of `session` sees it.

        Raises UnknownBatch if the batch has no row.
        """
        record = await session.fetchrow(self._sql.get, tenant, batch_id)
        if record is None:
            raise UnknownBatch(batch_id)
        return parse_batch(record)
