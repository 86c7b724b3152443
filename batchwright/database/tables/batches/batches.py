"""Table of batches. Each change of a status requires a certain earlier status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.driver import Session
from batchwright.database.errors import UnknownBatch
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchOutcome, BatchRow, EndedBatch
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import (
    dump_error_counts,
    dump_errors,
    dump_metadata,
    dump_models,
    dump_prices,
    dump_usages,
    final_counts,
    parse_batch,
    parse_waiting,
)
from batchwright.database.tables.batches.dead_letters import PostgresDeadLetters
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.database.tables.files import PostgresFiles
from batchwright.rules.batch_filters import (
    endpoint_tag,
    metadata_tags,
    model_tags,
)
from batchwright.rules.batch_states import cancel_takes_precedence
from batchwright.rules.json_text import storable_json


class BatchesTable(Protocol):
    """Table of the batches of all tenants. A batch is live until it has ended.

    Some methods require a certain status, and change nothing if the row has another status. Repeating a call
    is therefore safe. If a row is changed several times, the recorded times never decrease.
    """

    async def upsert(self, order: BatchOrder) -> BatchRow:
        """Insert the row of a new batch with the status `validating`, and return it.

        If the batch has a row already, return that row unchanged.
        """
        ...

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None: ...

    async def get_with_reasons(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[WaitingRow]] | None:
        """Return a batch with its forecast, and the reasons why it waits at the time `at`.

        The reasons are sorted by model. The result is None if the tenant has no such batch.
        """
        ...

    async def request_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        """Record that a client has requested to cancel a live batch. `cancel_requested_at` becomes `at`.

        If a cancel was requested before, the time of the first request stays. Return the current row, or None
        if the tenant has no such batch.
        """
        ...

    async def set_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> bool:
        """Set the cap on the cost of a batch, and return True. If `max_cost` is None, remove the cap.

        Return False without a change if the batch is not in progress, is being cancelled, or has reached its
        cap (`ProgressTable.reach_cap`).
        """
        ...

    async def count_change(self, tenant: str, batch_id: str, most: int) -> bool:
        """Count a pause or a resume of a batch, and return True.

        Return False without a change if `most` of them were counted before, or if the batch has ended.
        """
        ...

    async def record_output_copy(self, tenant: str, batch_id: str, copy: OutputCopy) -> None:
        """Record the result of an attempt to copy the files of a batch to its output location.

        If there is no such batch, or if the recorded state is final (`written` or `failed`), nothing changes.
        Only `written` replaces `failed`, because an attempt may still succeed after it was given up.
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
        """Record that an attempt to read a batch's input stored `size` bytes under the key prefix `prefix`.

        The bytes count towards the tenant's quota of stored bytes, until `remove_attempt` is called or the
        batch ends.
        """
        ...

    async def remove_attempt(self, tenant: str, batch_id: str, prefix: str) -> None:
        """Remove the record of `add_attempt`, because the objects under the key `prefix` were deleted.

        They no longer count towards the tenant's quota of stored bytes.
        """
        ...

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        """Change a batch's status from `validating` to `failed`, because its input is invalid.

        Return True, or False without a change if the status is not `validating`.

        Args:
            errors: what is wrong with the input.
            total: number of lines of the input.
            at: time of the change.
        """
        ...

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        """Change a batch's status from `in_progress` to `finalizing`. Its files are written in this phase.

        Return True, or False without a change if the status is not `in_progress`.
        """
        ...

    async def finish(self, tenant: str, batch_id: str, outcome: BatchOutcome, at: datetime) -> EndedBatch:
        """End a live batch with the files, counts and token usage of `outcome`. Return its row.

        In two cases the row is not changed:

        - The batch has already ended.
        - `outcome` has the status `completed`, but a client requested a cancel in the last ten minutes.

        Raises UnknownBatch if the batch has no row.
        """
        ...

    async def add_files(self, tenant: str, batch_id: str, outcome: BatchOutcome) -> EndedBatch:
        """Add files, counts and token usage to a batch that ended before its files were written.

        Return the row. If the batch has no pending files, nothing is changed. Raises UnknownBatch if the
        batch has no row.
        """
        ...

    async def abandon_files(
        self,
        tenant: str,
        batch_id: str,
        errors: list[ValidationError],
        *,
        total: int = 0,
        keep_until: datetime | None = None,
    ) -> EndedBatch:
        """Record that the pending files of an ended batch will never be written.

        Return the row. If the batch has no pending files, nothing is changed. Raises UnknownBatch if the
        batch has no row.

        Args:
            errors: why the files cannot be written. They replace the errors of the batch.
            total: number of lines of the input; 0 if unknown. A greater number in the row stays.
            keep_until: time until which results stay in storage; None if they are not kept.
        """
        ...

    async def end_without_files(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
        files_until: datetime | None = None,
    ) -> EndedBatch:
        """End a live batch without files. The last counts that workers reported become its final counts.

        Return the row. If the batch has already ended, the row is not changed. Raises UnknownBatch if the
        batch has no row.

        Args:
            status: final status.
            errors: why the batch failed; empty if it did not fail.
            at: time of the end.
            keep_until: time until which results stay in storage; None if they are not kept.
            files_until: time until which `add_files` may add the files; None if the batch gets no files.
        """
        ...


@dataclass(frozen=True)
class BatchQueries:
    pin_input: str
    insert: str
    get: str
    get_with_reasons: str
    lock: str
    request_cancel: str
    set_max_cost: str
    count_change: str
    record_output_copy: str
    start: str
    fail_validation: str
    start_finalizing: str
    close: str
    keep_results: str
    add_files: str
    abandon_files: str
    add_attempt: str
    remove_attempt: str
    clear_progress: str


class PostgresBatches(BatchesTable):
    def __init__(
        self, connections: ConnectionPool, files: PostgresFiles, dead_letters: PostgresDeadLetters
    ) -> None:
        self._connections = connections
        self._files, self._dead_letters = files, dead_letters
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
            return await self._row(session, order.tenant, order.batch_id)

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

    async def count_change(self, tenant: str, batch_id: str, most: int) -> bool:
        return await self._moved(self._sql.count_change, tenant, batch_id, most)

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

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        return await self._moved(self._sql.fail_validation, tenant, batch_id, at, total, dump_errors(errors))

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        return await self._moved(self._sql.start_finalizing, tenant, batch_id, at)

    async def finish(self, tenant: str, batch_id: str, outcome: BatchOutcome, at: datetime) -> EndedBatch:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if row.status.is_terminal or cancel_takes_precedence(outcome.status, row.cancel_requested_at, at):
                return EndedBatch(row, moved=False)
            await self._insert_files(session, row, outcome)
            return EndedBatch(await self._close(session, row, outcome, at), moved=True)

    async def add_files(self, tenant: str, batch_id: str, outcome: BatchOutcome) -> EndedBatch:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if not row.files_pending:
                return EndedBatch(row, moved=False)
            await self._insert_files(session, row, outcome)
            await session.execute(self._sql.add_files, tenant, batch_id, *_files_and_counts(row, outcome))
            return EndedBatch(await self._row(session, tenant, batch_id), moved=True)

    async def abandon_files(
        self,
        tenant: str,
        batch_id: str,
        errors: list[ValidationError],
        *,
        total: int = 0,
        keep_until: datetime | None = None,
    ) -> EndedBatch:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if not row.files_pending:
                return EndedBatch(row, moved=False)
            await session.execute(
                self._sql.abandon_files, tenant, batch_id, dump_errors(errors), total, keep_until
            )
            return EndedBatch(await self._row(session, tenant, batch_id), moved=True)

    async def end_without_files(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
        files_until: datetime | None = None,
    ) -> EndedBatch:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if row.status.is_terminal:
                return EndedBatch(row, moved=False)
            outcome = BatchOutcome(
                status=status,
                completed=row.completed,
                failed=row.failed,
                usage=row.usage,
                model_usage=row.model_usage,
                errors=errors,
                errors_summary=row.errors_summary,
            )
            if keep_until is not None or files_until is not None:
                await session.execute(self._sql.keep_results, tenant, batch_id, keep_until, files_until)
            return EndedBatch(await self._close(session, row, outcome, at), moved=True)

    async def _insert_files(self, session: Session, row: BatchRow, outcome: BatchOutcome) -> None:
        for file in (outcome.output, outcome.error):
            if file is not None:
                await self._files.insert_by(session, file)
        order = row.order
        await self._dead_letters.insert_by(session, order.tenant, order.batch_id, outcome.dead_letters)

    async def _close(self, session: Session, row: BatchRow, outcome: BatchOutcome, at: datetime) -> BatchRow:
        tenant, batch_id = row.order.tenant, row.order.batch_id
        errors = dump_errors(outcome.errors)
        counts = _files_and_counts(row, outcome)
        await session.execute(self._sql.close, tenant, batch_id, outcome.status, at, errors, *counts)
        await session.execute(self._sql.clear_progress, tenant, batch_id)
        return await self._row(session, tenant, batch_id)

    async def _moved(self, sql: str, *args: object) -> bool:
        return await self._connections.fetchrow(sql, *args) is not None

    async def _locked(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        """Return the row of a batch, and lock it until the transaction of `session` ends."""
        await session.fetchrow(self._sql.lock, tenant, batch_id)
        return await self._row(session, tenant, batch_id)

    async def _row(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        record = await session.fetchrow(self._sql.get, tenant, batch_id)
        if record is None:
            raise UnknownBatch(batch_id)
        return parse_batch(record)


def _files_and_counts(row: BatchRow, outcome: BatchOutcome) -> tuple[object, ...]:
    usage = outcome.usage
    return (
        outcome.output and outcome.output.id,
        outcome.error and outcome.error.id,
        dump_models(final_counts(row.models, outcome.models)),
        outcome.completed,
        outcome.failed,
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        dump_error_counts(outcome.errors_summary),
        dump_usages(outcome.model_usage),
    )
