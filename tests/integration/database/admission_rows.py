"""Functions that admit batches and bytes, for the tests of quotas."""

from batchwright.contracts.terms import Quota
from batchwright.database.database import Database
from batchwright.database.errors import QuotaExhausted
from batchwright.database.tables.tenants.admissions import Admission


async def admit_batch(database: Database, id: str, limit: int, tenant: str = "t") -> bool:
    """Admit a batch. Return False if the tenant already has `limit` live batches, so that it is
    not admitted.
    """
    return await _is_admitted(database, Admission(tenant, id, Quota.LIVE_BATCHES, 1, limit))


async def admit_bytes(database: Database, id: str, size: int, limit: int, tenant: str = "t") -> bool:
    """Admit `size` bytes. Return False if the tenant would have more than `limit` stored bytes, so that they
    are not admitted.
    """
    return await _is_admitted(database, Admission(tenant, id, Quota.STORED_BYTES, size, limit))


async def _is_admitted(database: Database, admission: Admission) -> bool:
    try:
        await database.admissions.admit(admission)
    except QuotaExhausted:
        return False
    return True
