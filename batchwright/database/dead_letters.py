"""The tables of dead letters and of the batches made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from batchwright.contracts.batch import BatchOrder
from batchwright.database.connection import Connections
from batchwright.database.dead_letters_base import Buried, DeadLettersTable
from batchwright.database.driver import Row, Session
from batchwright.database.errors import UnknownCursor
from batchwright.database.files import LAST, Files
from batchwright.database.rows import FileRow
from batchwright.database.sql import queries
from batchwright.rules.dead_letters import DeadLetter

_LETTERS = TypeAdapter(list[DeadLetter])
_AT_ONCE = 1_000


@dataclass(frozen=True)
class DeadLetterQueries:
    insert: str
    get: str
    position: str
    page: str
    origins: str
    origins_of_tenant: str
    origin: str
    not_retried: str
    not_begun: str
    lock_origin: str
    claim: str
    note_retry: str
    delete: str


class _Taken(Exception):
    """Undoes a claim."""


class DeadLetters(DeadLettersTable):
    def __init__(self, connections: Connections, files: Files) -> None:
        self._connections = connections
        self._files = files
        self._sql = queries(DeadLetterQueries, "dead_letters")

    async def insert_by(
        self, session: Session, tenant: str, batch_id: str, letters: Sequence[DeadLetter]
    ) -> None:
        """Within the transaction that ends their batch."""
        for start in range(0, len(letters), _AT_ONCE):
            some = _LETTERS.dump_json(list(letters[start : start + _AT_ONCE])).decode()
            await session.execute(self._sql.insert, tenant, batch_id, some)

    async def get(self, id: str) -> Buried | None:
        record = await self._connections.fetchrow(self._sql.get, id) if id.isprintable() else None
        return None if record is None else _buried(record)

    async def page(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str | None
    ) -> tuple[list[Buried], bool]:
        async with self._connections.session() as session:
            position = LAST
            if after is not None:
                row = None
                if after.isprintable():
                    row = await session.fetchrow(self._sql.position, after, tenant)
                if row is None:
                    raise UnknownCursor(after)
                position = row["failed_at"], after
            records = await session.fetch(self._sql.page, *position, tenant, batch_id, limit + 1)
        return [_buried(record) for record in records[:limit]], len(records) > limit

    async def origins(
        self, *, tenant: str | None, batch_id: str | None, limit: int, after: str
    ) -> list[tuple[str, str]]:
        if batch_id is not None:
            found = await self._connections.fetch(self._sql.origin, batch_id, tenant)
            rows = found if batch_id > after else []
        elif tenant is not None:
            rows = await self._connections.fetch(self._sql.origins_of_tenant, tenant, after, limit)
        else:
            rows = await self._connections.fetch(self._sql.origins, after, limit)
        return [(row["tenant"], row["batch_id"]) for row in rows]

    async def not_retried(self, tenant: str, batch_id: str) -> list[str]:
        rows = await self._connections.fetch(self._sql.not_retried, tenant, batch_id)
        return [row["id"] for row in rows]

    async def not_begun(self, tenant: str, batch_id: str) -> list[BatchOrder]:
        rows = await self._connections.fetch(self._sql.not_begun, tenant, batch_id)
        return [BatchOrder.model_validate_json(row["made"]) for row in rows]

    async def claim(self, ids: Sequence[str], order: BatchOrder, file: FileRow) -> bool:
        assert order.origin is not None
        tenant, origin = order.tenant, order.origin.batch_id
        try:
            async with self._connections.transaction() as session:
                await session.fetchrow(self._sql.lock_origin, tenant, origin)
                claimed = await session.fetch(self._sql.claim, tenant, origin, order.batch_id, list(ids))
                if len(claimed) != len(ids):
                    raise _Taken
                made = order.model_dump_json()
                await session.execute(self._sql.note_retry, tenant, order.batch_id, origin, made)
                await self._files.insert_by(session, file)
        except _Taken:
            return False
        return True

    async def delete(self, id: str) -> bool:
        if not id.isprintable():
            return False
        return await self._connections.fetchrow(self._sql.delete, id) is not None


def _buried(record: Row) -> Buried:
    columns = dict(record.items())
    letter = DeadLetter.model_validate({**columns, "offset": columns["line_offset"]})
    made = columns["made"]
    order = None if made is None else BatchOrder.model_validate_json(made)
    return Buried(record["tenant"], record["batch_id"], letter, order)
