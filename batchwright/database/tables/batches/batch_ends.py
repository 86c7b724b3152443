"""Stores the final status of a batch, and the rows of its output and error files."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.driver import Session
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchOutcome, BatchRow, EndedBatch
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import (
    dump_error_counts,
    dump_errors,
    dump_models,
    dump_usages,
    final_counts,
)
from batchwright.database.tables.batches.batches import PostgresBatches
from batchwright.database.tables.batches.dead_letters import PostgresDeadLetters
from batchwright.database.tables.files import PostgresFiles
from batchwright.rules.batch_states import cancel_takes_precedence


class BatchEnds(Protocol):
    """The methods that give a batch its final status, with or without its output and error files.

    If the files could not be written before the end, `add_files` adds them later.
    """

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

    async def finish(self, tenant: str, batch_id: str, outcome: BatchOutcome, at: datetime) -> EndedBatch:
        """End a batch with the files, counts and token usage of `outcome`. Return the batch's row.

        In two cases the row is not changed:

        - The batch has already ended.
        - `outcome` has the status `completed`, but a client requested a cancel in the last ten minutes. The
          batch then has to end as `cancelled`.

        Raises UnknownBatch if the batch has no row.
        """
        ...

    async def add_files(self, tenant: str, batch_id: str, outcome: BatchOutcome) -> EndedBatch:
        """Add files, counts and token usage to a batch that ended before its files were written.

        Return the row. Change nothing in these cases:

        - The batch has not ended.
        - The batch already has its files.
        - A record says that the batch will never get files.

        Raises UnknownBatch if the batch has no row.
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
        """Record that the output and error files of an ended batch will never be written.

        Return the row. Change nothing in these cases:

        - The batch has not ended.
        - The batch already has its files.
        - A record already says that the batch will never get files.

        Raises UnknownBatch if the batch has no row.

        Args:
            errors: why the files cannot be written. These errors replace the errors of the batch.
            total: number of lines of the input; 0 if unknown. It replaces only a smaller number in the row.
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
        """End a batch before its output and error files are written.

        The present counts of the batch, which include the reports of workers, become its final counts. Return
        the row. If the batch has already ended, the row is not changed. Raises UnknownBatch if the batch has
        no row.

        Args:
            status: final status.
            errors: why the batch failed; empty if it did not fail.
            at: time of the end.
            keep_until: time until which results stay in storage; None if they are not kept.
            files_until: time until which `add_files` can add the files; None if the batch never gets files.
        """
        ...


@dataclass(frozen=True)
class BatchEndQueries:
    lock: str
    fail_validation: str
    close: str
    keep_results: str
    add_files: str
    abandon_files: str
    clear_progress: str


class PostgresBatchEnds(BatchEnds):
    def __init__(
        self,
        connections: ConnectionPool,
        batches: PostgresBatches,
        files: PostgresFiles,
        dead_letters: PostgresDeadLetters,
    ) -> None:
        self._connections = connections
        self._batches, self._files, self._dead_letters = batches, files, dead_letters
        self._sql = queries(BatchEndQueries, "batch_ends")

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        values = (tenant, batch_id, at, total, dump_errors(errors))
        async with self._connections.transaction() as session:
            changed = await session.fetchrow(self._sql.fail_validation, *values) is not None
            if changed:
                await session.execute(self._sql.clear_progress, tenant, batch_id)
        return changed

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
            return EndedBatch(await self._batches.read_by(session, tenant, batch_id), moved=True)

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
            return EndedBatch(await self._batches.read_by(session, tenant, batch_id), moved=True)

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
        return await self._batches.read_by(session, tenant, batch_id)

    async def _locked(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        """Return the row of a batch, and lock it until the transaction of `session` ends."""
        await session.fetchrow(self._sql.lock, tenant, batch_id)
        return await self._batches.read_by(session, tenant, batch_id)


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
