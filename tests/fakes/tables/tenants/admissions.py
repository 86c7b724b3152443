"""Fake table of admissions, in memory. It passes the tests of the PostgreSQL table."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from batchwright.contracts.terms import Quota
from batchwright.database.errors import QuotaExhausted
from batchwright.database.tables.tenants.admissions import Admission, AdmissionsTable
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.rows import Rows

_MINUTE = 60.0


class MemoryAdmissions(AdmissionsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def admit(self, admission: Admission) -> None:
        tenant, id, quota, amount, limit = admission
        rows, now = self._rows.enter(), time.monotonic()
        if quota is Quota.LIVE_BATCHES:
            there, used = rows.batches.keys(), live_batches(rows, tenant, but=id)
        else:
            there, used = {**rows.files, **rows.uploads}.keys(), stored_bytes(rows, tenant, but=id)
        used += sum(
            coming
            for other, (of, coming, since) in rows.admissions.items()
            if of is quota
            and other[0] == tenant
            and other[1] != id
            and other not in there
            and now - since < _MINUTE
        )
        if used + amount > limit:
            raise QuotaExhausted(tenant, quota, limit)
        rows.admissions[tenant, id] = (quota, amount, now)

    async def admit_all(self, admissions: Sequence[Admission]) -> None:
        """Admit all of them. If one exceeds its quota, admit none and raise QuotaExhausted."""
        before = dict(self._rows.admissions)
        try:
            for admission in admissions:
                await self.admit(admission)
        except QuotaExhausted:
            self._rows.admissions = before
            raise

    async def release(self, tenant: str, id: str) -> None:
        self._rows.enter().admissions.pop((tenant, id), None)


def live_batches(rows: Rows, tenant: str, but: str = "") -> int:
    """Return how many live batches of a tenant count towards its quota. The batch `but` does not count."""
    return sum(
        row.order.tenant == tenant
        and row.status in LIVE_STATES
        and row.order.policy.rolling is None
        and row.order.batch_id != but
        for row in rows.batches.values()
    )


def stored_bytes(rows: Rows, tenant: str, but: str = "") -> int:
    """Return how many bytes of a tenant count towards its quota. The file or upload `but` does not count."""
    now = datetime.now(UTC)
    files = [row for row in rows.files.values() if row.tenant == tenant and row.id != but]
    known = sum(row.bytes for row in files if rows.is_known(row, now))
    uploads = [row for row in rows.uploads.values() if row.tenant == tenant and row.id != but]
    written = sum(size for (owner, _, _), size in rows.attempts.items() if owner == tenant)
    calls = [row.call for (of, _), row in rows.calls.items() if of == tenant]
    in_calls = sum(len(call.request) + len(call.echoed) + len(call.answer or b"") for call in calls)
    pending = sum(
        max(row.bytes, sum(part.bytes for key, part in rows.parts.items() if key[:2] == (tenant, row.id)))
        for row in uploads
        if row.status_at(now) == "pending"
    )
    return known + written + pending + in_calls
