"""Table of admissions: batches, files and uploads that count towards quotas before they have a row.

Decisions about the quotas of a tenant are made one after the other. Otherwise several requests at the same
time could exceed a quota together.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol
from weakref import WeakValueDictionary

from batchwright.contracts.terms import Quota
from batchwright.database.driver import QUERY_SECONDS, Session
from batchwright.database.errors import DatabaseUnavailable, QuotaExhausted
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class Admission(NamedTuple):
    """A new batch, file or upload that is to count towards a quota.

    Attributes:
        id: id of the batch, file or upload.
        amount: bytes if the quota is `stored_bytes`, and 1 if it is `live_batches`.
        limit: the tenant's limit of this quota, in the unit of `amount`.
    """

    tenant: str
    id: str
    quota: Literal[Quota.LIVE_BATCHES, Quota.STORED_BYTES]
    amount: int
    limit: int


class AdmissionsTable(Protocol):
    async def admit(self, admission: Admission) -> None:
        """Count a new batch, file or upload towards a quota before its row exists.

        The admission counts for a minute. If the row is inserted earlier, the row counts instead of the
        admission. If you call this again for the same batch, file or upload, the minute begins again.

        Raises:
            QuotaExhausted: the tenant would exceed the limit. Nothing is counted.
        """
        ...

    async def release(self, tenant: str, id: str) -> None:
        """Remove the admission of a batch, file or upload. From now on, only the row counts, if there is one.

        Call this after the row was inserted, or if no row will be inserted.
        """
        ...


@dataclass(frozen=True)
class AdmissionQueries:
    lock_tenant: str
    forget_admissions: str
    admit_batch: str
    admit_bytes: str
    release: str


class PostgresAdmissions(AdmissionsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(AdmissionQueries, "admissions")
        self._locks = WeakValueDictionary[
            str, asyncio.Lock
        ]()  # of tenants with a transaction in this process

    @asynccontextmanager
    async def transaction(self, tenant: str) -> AsyncGenerator[Session]:
        """Open a transaction that locks the quotas of a tenant.

        Other callers that want to lock the same quotas wait until the transaction ends. Quotas are locked to
        reserve lines and tokens, and to admit a batch, a file or an upload. A caller that waits for another
        caller in the same process uses no database connection.

        Raises:
            DatabaseUnavailable: the caller has waited longer than QUERY_SECONDS.
        """
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                await lock.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(
                f"Too many requests wait for the quotas of tenant {tenant!r}."
            ) from None
        try:
            async with self._connections.transaction() as session:
                await session.execute(self._sql.lock_tenant, tenant)
                yield session
        finally:
            lock.release()

    def transaction_for(self, *admissions: Admission | None) -> AbstractAsyncContextManager[Session]:
        """Open a transaction in which the caller must call `admit_by` for each admission that is not None.

        All `admissions` must be of the same tenant. The quotas of this tenant are locked as in `transaction`.
        If all `admissions` are None, nothing is locked.
        """
        tenant = next((each.tenant for each in admissions if each is not None), None)
        return self._connections.transaction() if tenant is None else self.transaction(tenant)

    async def admit(self, admission: Admission) -> None:
        async with self.transaction(admission.tenant) as session:
            await self.admit_by(session, admission)

    async def admit_by(self, session: Session, admission: Admission) -> None:
        """Do the same as `admit`, but in the transaction of `session`.

        The caller must have opened this transaction with `transaction` or `transaction_for`.
        """
        tenant, id, quota, amount, limit = admission
        await session.execute(self._sql.forget_admissions, tenant)
        sql = self._sql.admit_batch if quota is Quota.LIVE_BATCHES else self._sql.admit_bytes
        if await session.fetchrow(sql, tenant, id, amount, limit) is None:
            raise QuotaExhausted(tenant, quota, limit)

    async def release(self, tenant: str, id: str) -> None:
        await self._connections.execute(self._sql.release, tenant, id)

    async def release_by(self, session: Session, tenant: str, id: str) -> None:
        """Do the same as `release`, but in the transaction of `session`."""
        await session.execute(self._sql.release, tenant, id)
