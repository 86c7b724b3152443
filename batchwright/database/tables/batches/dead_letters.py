"""Tables of dead letters, which are lines that failed after their last attempt, and of their retries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pydantic import TypeAdapter

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.driver import Row, Session
from batchwright.database.errors import UnknownCursor
from batchwright.database.list_positions import LAST_POSITION
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import FileRow
from batchwright.database.sql import queries
from batchwright.database.tables.files import PostgresFiles
from batchwright.database.tables.tenants.admissions import Admission, PostgresAdmissions
from batchwright.rules.json_text import storable_json
from batchwright.rules.results.dead_letters import DeadLetter

_DEAD_LETTERS = TypeAdapter(list[DeadLetter])
_INSERT_CHUNK = 1_000


class StoredDeadLetter(NamedTuple):
    """A dead letter (a line that failed after its last attempt) with its tenant and batch.

    `retry` describes the batch that retries the line; None if no batch retries it.
    """

    tenant: str
    batch_id: str
    dead_letter: DeadLetter
    retry: BatchOrder | None = None


class DeadLettersTable(Protocol):
    """Table of dead letters: lines that failed after their last attempt. Another batch can retry them.

    The dead letters of a batch are deleted together with the row of the batch.
    """

    async def get(self, id: str) -> StoredDeadLetter | None: ...

    async def page(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> tuple[list[StoredDeadLetter], bool]:
        """Return at most `limit` dead letters (failed lines), newest first. The second item is True if more
        follow.

        Args:
            tenant: return only dead letters of this tenant; None for all tenants.
            batch_id: return only dead letters of this batch; None for all batches.
            after: id of the last dead letter of the previous page; None for the first page.

        Raises UnknownCursor if there is no dead letter `after`.
        """
        ...

    async def retryable_batches(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str
    ) -> list[tuple[str, str]]:
        """Return (tenant, batch id) of the batches whose dead letters (failed lines) can be retried.

        The list is sorted by batch id. A dead letter can be retried if no batch was created to retry this
        dead letter, or if such a batch was created but never started.

        Args:
            tenant: return only batches of this tenant; None for all tenants.
            batch_id: return only this batch; None for all batches.
            limit: greatest number of batches to return.
            after: return only batches whose id is greater than `after`.
        """
        ...

    async def unretried_ids(self, tenant: str, batch_id: str) -> list[str]:
        """Return the ids of a batch's dead letters (failed lines) for which no retry was created.

        The ids are sorted by the position of the lines in the input.
        """
        ...

    async def unstarted_retries(self, tenant: str, batch_id: str) -> list[BatchOrder]:
        """Return the batches that were created to retry lines of this batch, but never started.

        The caller can start the workflow of each batch with its BatchOrder.
        """
        ...

    async def claim(
        self, ids: Sequence[str], order: BatchOrder, file: FileRow, *, admissions: Sequence[Admission] = ()
    ) -> bool:
        """Assign dead letters (failed lines) to a new batch that will retry them, and return True.

        Also insert the row `file`. If one of the dead letters is already assigned to a batch or no longer
        exists, change nothing and return False.

        Args:
            ids: ids of dead letters. All belong to the batch that `order.origin` names.
            order: describes the new batch. It is the argument that starts the batch's workflow.
            file: row of the input file of the new batch.
            admissions: the amounts that the new batch and its file add to the used part of the tenant's
                quotas. If False is returned, nothing is added.

        Raises QuotaExhausted, and changes nothing, if one of these amounts would exceed the limit of a quota.
        """
        ...

    async def delete(self, id: str) -> bool:
        """Delete the dead letter (failed line) with this id. Return True, or False if it does not exist."""
        ...


@dataclass(frozen=True)
class DeadLetterQueries:
    insert: str
    get: str
    position: str
    page: str
    retryable_batches: str
    retryable_batches_of_tenant: str
    retryable_batch: str
    unretried_ids: str
    unstarted_retries: str
    lock_origin: str
    claim: str
    insert_retry: str
    delete: str


class _AlreadyClaimed(Exception):
    """An exception that makes `claim` return False: a failed line is already assigned to a batch, or is
    deleted.
    """


class PostgresDeadLetters(DeadLettersTable):
    def __init__(
        self, connections: ConnectionPool, files: PostgresFiles, admissions: PostgresAdmissions
    ) -> None:
        self._connections = connections
        self._files, self._admissions = files, admissions
        self._sql = queries(DeadLetterQueries, "dead_letters")

    async def insert_by(
        self, session: Session, tenant: str, batch_id: str, dead_letters: Sequence[DeadLetter]
    ) -> None:
        """Insert the dead letters (failed lines) of a batch in the transaction of `session`."""
        for start in range(0, len(dead_letters), _INSERT_CHUNK):
            some = _DEAD_LETTERS.dump_json(list(dead_letters[start : start + _INSERT_CHUNK])).decode()
            await session.execute(self._sql.insert, tenant, batch_id, storable_json(some))

    async def get(self, id: str) -> StoredDeadLetter | None:
        record = await self._connections.fetchrow(self._sql.get, id) if id.isprintable() else None
        return None if record is None else _parse_dead_letter(record)

    async def page(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> tuple[list[StoredDeadLetter], bool]:
        async with self._connections.session() as session:
            position = LAST_POSITION
            if after is not None:
                row = None
                if after.isprintable():
                    row = await session.fetchrow(self._sql.position, after, tenant)
                if row is None:
                    raise UnknownCursor(after)
                position = row["failed_at"], after
            records = await session.fetch(self._sql.page, *position, tenant, batch_id, limit + 1)
        return [_parse_dead_letter(record) for record in records[:limit]], len(records) > limit

    async def retryable_batches(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str
    ) -> list[tuple[str, str]]:
        if batch_id is not None:
            found = await self._connections.fetch(self._sql.retryable_batch, batch_id, tenant)
            rows = found if batch_id > after else []
        elif tenant is not None:
            rows = await self._connections.fetch(self._sql.retryable_batches_of_tenant, tenant, after, limit)
        else:
            rows = await self._connections.fetch(self._sql.retryable_batches, after, limit)
        return [(row["tenant"], row["batch_id"]) for row in rows]

    async def unretried_ids(self, tenant: str, batch_id: str) -> list[str]:
        rows = await self._connections.fetch(self._sql.unretried_ids, tenant, batch_id)
        return [row["id"] for row in rows]

    async def unstarted_retries(self, tenant: str, batch_id: str) -> list[BatchOrder]:
        rows = await self._connections.fetch(self._sql.unstarted_retries, tenant, batch_id)
        return [BatchOrder.model_validate_json(row["made"]) for row in rows]

    async def claim(
        self, ids: Sequence[str], order: BatchOrder, file: FileRow, *, admissions: Sequence[Admission] = ()
    ) -> bool:
        assert order.origin is not None
        tenant, origin = order.tenant, order.origin.batch_id
        try:
            async with self._admissions.transaction_for(*admissions) as session:
                await session.fetchrow(self._sql.lock_origin, tenant, origin)
                claimed = await session.fetch(self._sql.claim, tenant, origin, order.batch_id, list(ids))
                if len(claimed) != len(ids):
                    raise _AlreadyClaimed
                for admission in admissions:
                    await self._admissions.admit_by(session, admission)
                made = order.model_dump_json()
                await session.execute(self._sql.insert_retry, tenant, order.batch_id, origin, made)
                await self._files.insert_by(session, file)
                await self._admissions.release_by(session, file.tenant, file.id)  # now the row counts
        except _AlreadyClaimed:
            return False
        return True

    async def delete(self, id: str) -> bool:
        if not id.isprintable():
            return False
        return await self._connections.fetchrow(self._sql.delete, id) is not None


def _parse_dead_letter(record: Row) -> StoredDeadLetter:
    columns = dict(record.items())
    dead_letter = DeadLetter.model_validate({**columns, "offset": columns["line_offset"]})
    made = columns["made"]
    order = None if made is None else BatchOrder.model_validate_json(made)
    return StoredDeadLetter(record["tenant"], record["batch_id"], dead_letter, order)
