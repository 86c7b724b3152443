"""Quotas in memory, held to the same suite as PostgreSQL's."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime

from batchwright.contracts.openai import BatchStatus
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
from batchwright.database.tenant_rows import OrganizationRow, UserRow
from batchwright.rules.quotas import Enqueued, Excess, Limits, Quota, excess, left
from batchwright.rules.states import LIVE
from tests.fakes.rows import Key, Rows, slices, with_keys

_MINUTE = 60.0


class MemoryQuotas(QuotasTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def get(self, tenant: str) -> OwnQuotas:
        row = self._rows.enter().quotas.get(tenant)
        return OwnQuotas() if row is None else row.own

    async def all(self) -> list[QuotaRow]:
        return [row for _, row in sorted(self._rows.enter().quotas.items())]

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> OwnQuotas:
        own = (await self.get(tenant)).model_copy(update=changes)
        self._rows.quotas[tenant] = QuotaRow(tenant, own, at)
        return own

    async def clear(self, tenant: str) -> None:
        self._rows.enter().quotas.pop(tenant, None)

    async def used(self, tenant: str) -> Used:
        batches = self._rows.enter().batches.values()
        lines, tokens = self._enqueued(tenant)
        began, requests = self._rows.requests.get(tenant, (0.0, 0))
        return Used(
            live_batches=sum(row.order.tenant == tenant and row.status in LIVE for row in batches),
            stored_bytes=await self.stored(tenant),
            enqueued_lines=lines,
            enqueued_tokens=tokens,
            requests_per_minute=requests if time.monotonic() - began < _MINUTE else 0,
            tokens_per_day=self._spent_today(tenant),
        )

    async def stored(self, tenant: str) -> int:
        return self._stored(tenant)

    def _stored(self, tenant: str, but: str = "") -> int:
        rows, now = self._rows.enter(), datetime.now(UTC)
        files = [row for row in rows.files.values() if row.tenant == tenant and row.id != but]
        known = sum(row.bytes for row in files if rows.is_known(row, now))
        uploads = [row for row in rows.uploads.values() if row.tenant == tenant and row.id != but]
        return known + sum(row.bytes for row in uploads if row.status_at(now) == "pending")

    async def reserve(self, tenant: str, batch_id: str, asked: Enqueued, limits: Limits) -> Excess | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or row.status is not BatchStatus.VALIDATING:
            return None
        found = excess(limits, self._enqueued(tenant, but=batch_id), asked)
        if found is None:
            self._rows.enqueued[tenant, batch_id] = asked
        return found

    async def admit_batch(self, tenant: str, batch_id: str, most: int) -> bool:
        batches = self._rows.enter().batches
        used = sum(
            key[0] == tenant and row.status in LIVE and key[1] != batch_id for key, row in batches.items()
        )
        return self._admit(Quota.LIVE_BATCHES, (tenant, batch_id), 1, most - used, batches)

    async def admit_bytes(self, tenant: str, id: str, size: int, most: int) -> bool:
        there = {**self._rows.enter().files, **self._rows.uploads}
        return self._admit(Quota.STORED_BYTES, (tenant, id), size, most - self._stored(tenant, but=id), there)

    async def withdraw(self, tenant: str, id: str) -> None:
        self._rows.enter().admissions.pop((tenant, id), None)

    def _admit(self, quota: Quota, key: Key, amount: int, room: int, there: Collection[Key]) -> bool:
        now = time.monotonic()
        coming = sum(
            asked
            for other, (of, asked, since) in self._rows.admissions.items()
            if of is quota
            and other[0] == key[0]
            and other != key
            and other not in there
            and now - since < _MINUTE
        )
        if coming + amount > room:
            return False
        self._rows.admissions[key] = (quota, amount, now)
        return True

    async def key_budgets(self) -> dict[str, int]:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        return {key.id: key.tokens_per_day for key in keys if key.tokens_per_day is not None}

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        row = next((key for key in keys if (key.tenant, key.id) == (tenant, key_id)), None)
        return row and KeyBudget(row.tokens_per_day, self._spent_today(tenant, key_id))

    async def organizations(self) -> list[OrganizationRow]:
        return [row for _, row in sorted(self._rows.enter().organizations.items())]

    async def organization_of(self, tenant: str) -> SharedBudget | None:
        for row in await self.organizations():
            if tenant in row.tenants:
                used = sum(self._spent_today(member) for member in row.tenants)
                return SharedBudget(row.name, row.tokens_per_day, used)
        return None

    async def limited_users(self) -> list[UserRow]:
        return [row for row in with_keys(self._rows.enter()) if row.tokens_per_day is not None]

    async def user_of(self, tenant: str, key_id: str) -> SharedBudget | None:
        for row in with_keys(self._rows.enter()):
            if row.tenant == tenant and key_id in row.keys:
                used = sum(self._spent_today(tenant, key) for key in row.keys)
                return SharedBudget(row.name, row.tokens_per_day, used)
        return None

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        keys, now = [found.key for found in self._rows.enter().api_keys.values()], datetime.now(UTC)
        revoked = {key.id for key in keys if key.revoked_at is not None and key.revoked_at >= since}
        expired = {key.id for key in keys if key.expires_at is not None and since <= key.expires_at <= now}
        return frozenset(revoked | expired)

    async def tell_spent(self, worker: str, day: date, spent: Sequence[Spent]) -> None:
        rows = self._rows.enter().spent
        for of, key_id, tokens in spent:
            key = (of, key_id, day, worker)
            rows[key] = max(rows.get(key, 0), tokens)

    async def forget_spent(self, before: date) -> None:
        rows = self._rows.enter().spent
        for key in [key for key in rows if key[2] < before]:
            del rows[key]

    async def spent_by_others(self, worker: str, day: date) -> list[Spent]:
        sums = Counter[tuple[str, str]]()
        for (tenant, key_id, on, by), tokens in self._rows.enter().spent.items():
            if on == day and by != worker:
                sums[tenant, key_id] += tokens
        return [Spent(*key, tokens) for key, tokens in sums.items()]

    def _spent_today(self, tenant: str, key_id: str | None = None) -> int:
        today = datetime.now(UTC).date()
        return sum(
            tokens
            for (of, by, day, _), tokens in self._rows.spent.items()
            if (of, day) == (tenant, today) and key_id in (None, by)
        )

    async def count_request(self, tenant: str) -> Counted:
        now = time.monotonic()
        began, requests = self._rows.enter().requests.get(tenant, (now, 0))
        if now - began >= _MINUTE:
            began, requests = now, 0
        self._rows.requests[tenant] = (began, requests + 1)
        return Counted(requests + 1, _MINUTE - (now - began))

    def _enqueued(self, tenant: str, but: str = "") -> Enqueued:
        lines, tokens = 0, 0
        for (owner, batch_id), planned in self._rows.enqueued.items():
            row = self._rows.batches.get((owner, batch_id))
            if owner != tenant or batch_id == but or row is None or row.status not in LIVE:
                continue
            told = slices(self._rows, owner, batch_id)
            remaining = left(planned, sum(of.completed + of.failed for of in told))
            lines, tokens = lines + remaining.lines, tokens + remaining.tokens
        return Enqueued(lines, tokens)
