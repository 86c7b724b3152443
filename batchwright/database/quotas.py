"""The tables of quotas. What is enqueued is computed from the batches that are live, never counted down."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from weakref import WeakValueDictionary

from batchwright.database.batches import Batches
from batchwright.database.connection import Connections
from batchwright.database.driver import QUERY_SECONDS, Row, Session
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import (
    Counted,
    KeyBudget,
    OwnQuotas,
    QuotaRow,
    QuotasTable,
    SharedBudget,
    Spent,
    Used,
)
from batchwright.database.sql import queries
from batchwright.database.tenant_rows import OrganizationRow, UserRow
from batchwright.rules.quotas import Enqueued, Excess, Limits, excess

_NO_BATCH = ""


@dataclass(frozen=True)
class QuotaQueries:
    get: str
    all: str
    make: str
    lock_row: str
    put: str
    clear: str
    lock_tenant: str
    enqueued: str
    enqueue: str
    is_validating: str
    stored: str
    requests: str
    count_request: str
    key_budgets: str
    key_budget: str
    organizations: str
    organization_of: str
    limited_users: str
    user_of: str
    withdrawn_keys: str
    tell_spent: str
    forget_spent: str
    spent_by_others: str
    spent_today: str
    forget_admissions: str
    admit_batch: str
    admit_bytes: str
    withdraw: str


class Quotas(QuotasTable):
    def __init__(self, connections: Connections, batches: Batches) -> None:
        self._connections = connections
        self._batches = batches
        self._sql = queries(QuotaQueries, "quotas")
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # of the tenants that somebody works for

    async def get(self, tenant: str) -> OwnQuotas:
        record = await self._connections.fetchrow(self._sql.get, tenant)
        return OwnQuotas() if record is None else _own(record)

    async def all(self) -> list[QuotaRow]:
        records = await self._connections.fetch(self._sql.all)
        return [QuotaRow(record["tenant"], _own(record), record["changed_at"]) for record in records]

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> OwnQuotas:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.make, tenant, at)
            record = await session.fetchrow(self._sql.lock_row, tenant)
            own = OwnQuotas() if record is None else _own(record)
            own = own.model_copy(update=changes)
            await session.execute(
                self._sql.put,
                tenant,
                own.live_batches,
                own.stored_bytes,
                own.enqueued_lines,
                own.enqueued_tokens,
                own.requests_per_minute,
                None if own.models is None else sorted(own.models),
                at,
                own.tokens_per_day,
            )
            return own

    async def clear(self, tenant: str) -> None:
        await self._connections.execute(self._sql.clear, tenant)

    async def used(self, tenant: str) -> Used:
        async with self._connections.session() as session:
            enqueued = await self._enqueued(session, tenant, _NO_BATCH)
            counted = await session.fetchrow(self._sql.requests, tenant)
            spent = await session.fetchrow(self._sql.spent_today, tenant)
        return Used(
            live_batches=await self._batches.count_live(tenant),
            stored_bytes=await self.stored(tenant),
            enqueued_lines=enqueued.lines,
            enqueued_tokens=enqueued.tokens,
            requests_per_minute=0 if counted is None else counted["requests"],
            tokens_per_day=0 if spent is None else spent["tokens"],
        )

    async def stored(self, tenant: str) -> int:
        record = await self._connections.fetchrow(self._sql.stored, tenant)
        return 0 if record is None else record["bytes"]

    async def reserve(self, tenant: str, batch_id: str, asked: Enqueued, limits: Limits) -> Excess | None:
        async with self._turn(tenant) as session:
            if await session.fetchrow(self._sql.is_validating, tenant, batch_id) is None:
                return None
            found = excess(limits, await self._enqueued(session, tenant, batch_id), asked)
            if found is None:
                await session.execute(self._sql.enqueue, tenant, batch_id, asked.lines, asked.tokens)
            return found

    async def admit_batch(self, tenant: str, batch_id: str, most: int) -> bool:
        return await self._admit(self._sql.admit_batch, tenant, batch_id, 1, most)

    async def admit_bytes(self, tenant: str, id: str, size: int, most: int) -> bool:
        return await self._admit(self._sql.admit_bytes, tenant, id, size, most)

    async def withdraw(self, tenant: str, id: str) -> None:
        await self._connections.execute(self._sql.withdraw, tenant, id)

    async def _admit(self, sql: str, tenant: str, id: str, amount: int, most: int) -> bool:
        async with self._turn(tenant) as session:
            await session.execute(self._sql.forget_admissions, tenant)
            return await session.fetchrow(sql, tenant, id, amount, most) is not None

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncGenerator[Session]:
        """A transaction that no other of the tenant's is beside.

        Those of this process wait for each other without a connection: the pool is every tenant's.
        """
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                await turn.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(f"Too many wait for the quotas of tenant {tenant!r}.") from None
        try:
            async with self._connections.transaction() as session:
                await session.execute(self._sql.lock_tenant, tenant)
                yield session
        finally:
            turn.release()

    async def count_request(self, tenant: str) -> Counted:
        record = await self._connections.fetchrow(self._sql.count_request, tenant)
        assert record is not None, "the statement returns the row it writes"
        return Counted(record["requests"], record["seconds_left"])

    async def key_budgets(self) -> dict[str, int]:
        records = await self._connections.fetch(self._sql.key_budgets)
        return {record["id"]: record["tokens_per_day"] for record in records}

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        record = await self._connections.fetchrow(self._sql.key_budget, tenant, key_id)
        return None if record is None else KeyBudget(record["tokens_per_day"], record["tokens"])

    async def organizations(self) -> list[OrganizationRow]:
        records = await self._connections.fetch(self._sql.organizations)
        return [OrganizationRow.model_validate(dict(record.items())) for record in records]

    async def organization_of(self, tenant: str) -> SharedBudget | None:
        record = await self._connections.fetchrow(self._sql.organization_of, tenant)
        return None if record is None else SharedBudget(*record.values())

    async def limited_users(self) -> list[UserRow]:
        records = await self._connections.fetch(self._sql.limited_users)
        return [UserRow.model_validate(dict(record.items())) for record in records]

    async def user_of(self, tenant: str, key_id: str) -> SharedBudget | None:
        record = await self._connections.fetchrow(self._sql.user_of, tenant, key_id)
        return None if record is None else SharedBudget(*record.values())

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        records = await self._connections.fetch(self._sql.withdrawn_keys, since)
        return frozenset(record["id"] for record in records)

    async def tell_spent(self, worker: str, day: date, spent: Sequence[Spent]) -> None:
        if not spent:
            return
        tenants, key_ids, tokens = map(list, zip(*spent, strict=True))
        await self._connections.execute(self._sql.tell_spent, worker, day, tenants, key_ids, tokens)

    async def forget_spent(self, before: date) -> None:
        await self._connections.execute(self._sql.forget_spent, before)

    async def spent_by_others(self, worker: str, day: date) -> list[Spent]:
        records = await self._connections.fetch(self._sql.spent_by_others, worker, day)
        return [Spent(record["tenant"], record["key_id"], record["tokens"]) for record in records]

    async def _enqueued(self, session: Session, tenant: str, but: str) -> Enqueued:
        record = await session.fetchrow(self._sql.enqueued, tenant, but)
        return Enqueued(0, 0) if record is None else Enqueued(record["lines"], record["tokens"])


def _own(record: Row) -> OwnQuotas:
    return OwnQuotas.model_validate(
        {name: value for name, value in record.items() if name not in ("tenant", "changed_at")}
    )
