"""The table of batches: every move of a status is one guarded statement, every end one transaction."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.database.base import BatchesTable
from batchwright.database.batch_rows import (
    batch_row,
    json_of_errors,
    json_of_metadata,
    json_of_models,
    waiting_of,
)
from batchwright.database.connection import Connections
from batchwright.database.counts import as_ended
from batchwright.database.dead_letters import DeadLetters
from batchwright.database.driver import Session
from batchwright.database.errors import UnknownBatch
from batchwright.database.files import LAST, Files, position_of
from batchwright.database.rows import BatchRow, ModelCount, Outcome
from batchwright.database.sql import queries
from batchwright.database.waiting_base import Waiting
from batchwright.rules.states import cancel_comes_first


@dataclass(frozen=True)
class BatchQueries:
    pin_input: str
    insert: str
    get: str
    get_waiting: str
    lock: str
    position: str
    page: str
    count_live: str
    note_cancel: str
    begin: str
    fail_validation: str
    start_finalizing: str
    close: str
    keep_results: str
    clear_progress: str


class Batches(BatchesTable):
    def __init__(self, connections: Connections, files: Files, dead_letters: DeadLetters) -> None:
        self._connections = connections
        self._files, self._dead_letters = files, dead_letters
        self._sql = queries(BatchQueries, "batches")

    async def upsert(self, order: BatchOrder) -> BatchRow:
        async with self._connections.transaction() as session:
            await session.fetchrow(self._sql.pin_input, order.tenant, order.input_file_id)
            await session.execute(
                self._sql.insert,
                order.tenant,
                order.batch_id,
                order.input_file_id,
                order.endpoint,
                order.completion_window,
                json_of_metadata(order.metadata),
                order.output_expires_after_seconds,
                order.weight,
                order.priority,
                order.policy.model_dump_json(),
                order.created_at,
                order.expires_at,
                order.origin and order.origin.model_dump_json(),
            )
            return await self._row(session, order.tenant, order.batch_id)

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        if not batch_id.isprintable():  # PostgreSQL takes no NUL, so there is none to find
            return None
        record = await self._connections.fetchrow(self._sql.get, tenant, batch_id)
        return None if record is None else batch_row(record)

    async def get_waiting(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[Waiting]] | None:
        if not batch_id.isprintable():
            return None
        record = await self._connections.fetchrow(self._sql.get_waiting, tenant, batch_id, at)
        return None if record is None else (batch_row(record), waiting_of(record["waiting"]))

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[BatchRow], bool]:
        async with self._connections.session() as session:
            position = LAST
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            records = await session.fetch(self._sql.page, tenant, *position, limit + 1)
        return [batch_row(record) for record in records[:limit]], len(records) > limit

    async def count_live(self, tenant: str) -> int:
        record = await self._connections.fetchrow(self._sql.count_live, tenant)
        return 0 if record is None else record["count"]

    async def note_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        if not batch_id.isprintable():
            return None
        await self._connections.execute(self._sql.note_cancel, tenant, batch_id, at)
        return await self.get(tenant, batch_id)

    async def begin(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCount],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
    ) -> bool:
        counts = json_of_models(models)
        return await self._moved(self._sql.begin, tenant, batch_id, at, total, counts, unserved, completed)

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        return await self._moved(
            self._sql.fail_validation, tenant, batch_id, at, total, json_of_errors(errors)
        )

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        return await self._moved(self._sql.start_finalizing, tenant, batch_id, at)

    async def finish(self, tenant: str, batch_id: str, outcome: Outcome, at: datetime) -> BatchRow:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if row.status.is_terminal or cancel_comes_first(outcome.status, row.cancel_requested_at, at):
                return row
            for file in (outcome.output, outcome.error):
                if file is not None:
                    await self._files.insert_by(session, file)
            await self._dead_letters.insert_by(session, tenant, batch_id, outcome.dead_letters)
            return await self._close(session, row, outcome, at)

    async def end(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
    ) -> BatchRow:
        async with self._connections.transaction() as session:
            row = await self._locked(session, tenant, batch_id)
            if row.status.is_terminal:
                return row
            told = Outcome(
                status=status, completed=row.completed, failed=row.failed, usage=row.usage, errors=errors
            )
            if keep_until is not None:
                await session.execute(self._sql.keep_results, tenant, batch_id, keep_until)
            return await self._close(session, row, told, at)

    async def _close(self, session: Session, row: BatchRow, outcome: Outcome, at: datetime) -> BatchRow:
        tenant, batch_id, usage = row.order.tenant, row.order.batch_id, outcome.usage
        await session.execute(
            self._sql.close,
            tenant,
            batch_id,
            outcome.status,
            at,
            outcome.output and outcome.output.id,
            outcome.error and outcome.error.id,
            json_of_errors(outcome.errors),
            json_of_models(as_ended(row.models, outcome.models)),
            outcome.completed,
            outcome.failed,
            usage.input_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            usage.reasoning_tokens,
        )
        await session.execute(self._sql.clear_progress, tenant, batch_id)
        return await self._row(session, tenant, batch_id)

    async def _moved(self, sql: str, *args: object) -> bool:
        return await self._connections.fetchrow(sql, *args) is not None

    async def _locked(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        """The row, which nobody else moves until the transaction ends."""
        await session.fetchrow(self._sql.lock, tenant, batch_id)
        return await self._row(session, tenant, batch_id)

    async def _row(self, session: Session, tenant: str, batch_id: str) -> BatchRow:
        record = await session.fetchrow(self._sql.get, tenant, batch_id)
        if record is None:
            raise UnknownBatch(batch_id)
        return batch_row(record)
