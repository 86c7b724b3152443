"""Fake table of quotas, in memory. It passes the tests of the PostgreSQL table."""

import math
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow, WorkerHeartbeat
from batchwright.database.tables.tenants.quota_records import (
    DailyUsage,
    KeyBudget,
    KeyCap,
    QuotaRow,
    QuotaUsage,
    RequestCount,
    TenantQuotas,
    TenantShare,
)
from batchwright.database.tables.tenants.quotas import QuotasTable
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.tenants.quotas import (
    DailyAmounts,
    EnqueuedWork,
    QuotaExcess,
    QuotaLimits,
    queue_behind,
)
from batchwright.rules.worker_stats import running_models
from tests.fakes.tables.rows import Rows, slices, used_today
from tests.fakes.tables.tenants.admissions import stored_bytes

_MINUTE = 60.0


class MemoryQuotas(QuotasTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def get(self, tenant: str) -> TenantQuotas:
        row = self._rows.enter().quotas.get(tenant)
        return TenantQuotas() if row is None else row.own

    async def all(self) -> list[QuotaRow]:
        return [row for _, row in sorted(self._rows.enter().quotas.items())]

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> TenantQuotas:
        own = (await self.get(tenant)).model_copy(update=changes)
        self._rows.quotas[tenant] = QuotaRow(tenant, own, at)
        return own

    async def clear(self, tenant: str) -> None:
        self._rows.enter().quotas.pop(tenant, None)

    async def shares(self, max_age: timedelta) -> list[TenantShare]:
        beats = self._rows.enter().live_beats(max_age)
        found: list[TenantShare] = []
        for tenant, own, _ in await self.all():
            rates = own.backend_requests_per_minute, own.backend_tokens_per_minute
            limits = (own.max_in_flight, *rates)
            workers = self._workers_of(tenant, beats) if any(limits) else []
            if own.weight is not None or any(limits):
                found.append(TenantShare(tenant, own.weight, own.max_in_flight, workers, *rates, len(beats)))
        return found

    async def key_caps(self, max_age: timedelta) -> list[KeyCap]:
        beats = self._rows.enter().live_beats(max_age)
        keys = sorted((found.key for found in self._rows.enter().api_keys.values()), key=lambda key: key.id)
        return [
            KeyCap(key.id, key.max_in_flight, self._workers_of(key.tenant, beats, key.id))
            for key in keys
            if key.max_in_flight is not None and key.revoked_at is None
        ]

    def _workers_of(self, tenant: str, beats: list[WorkerHeartbeat], key_id: str | None = None) -> list[str]:
        """Return the workers that run slices of the tenant's live batches.

        If `key_id` is given, only batches count that were created with this key.
        """
        batches = {
            id
            for (of, id), row in self._rows.batches.items()
            if of == tenant and row.status in LIVE_STATES and key_id in (None, row.order.policy.caller.key_id)
        }
        return sorted(beat.id for beat in beats if batches & {id for id, _ in running_models([beat.stats])})

    async def used(self, tenant: str) -> QuotaUsage:
        batches = self._rows.enter().batches.values()
        lines, tokens = self._enqueued(tenant)
        began, requests = self._rows.requests.get(tenant, (0.0, 0))
        return QuotaUsage(
            live_batches=sum(
                row.order.tenant == tenant and row.status in LIVE_STATES and row.order.policy.rolling is None
                for row in batches
            ),
            stored_bytes=await self.stored(tenant),
            enqueued_lines=lines,
            enqueued_tokens=tokens,
            requests_per_minute=requests if time.monotonic() - began < _MINUTE else 0,
            tokens_per_day=used_today(self._rows, tenant).tokens,
            cost_per_day=used_today(self._rows, tenant).cost,
            webhooks=sum(
                endpoint.tenant == tenant and not endpoint.batch_id
                for endpoint in self._rows.webhook_endpoints.values()
            ),
        )

    async def stored(self, tenant: str) -> int:
        return stored_bytes(self._rows.enter(), tenant)

    async def reserve(
        self,
        tenant: str,
        batch_id: str,
        requested: EnqueuedWork,
        limits: QuotaLimits,
        *,
        waits: bool = False,
    ) -> QuotaExcess | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or row.status is not BatchStatus.VALIDATING:
            return None
        before = self._waiting_before(row) if waits else 0
        found = queue_behind(limits, self._enqueued(tenant, but=batch_id), requested, before)
        if found is None:
            self._rows.enqueued[tenant, batch_id] = requested
        elif waits and found.can_wait:
            self._rows.requested[tenant, batch_id] = requested
            self._rows.enqueued.pop((tenant, batch_id), None)
        return found

    async def requested(self, tenant: str, batch_id: str) -> EnqueuedWork | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        is_validating = row is not None and row.status is BatchStatus.VALIDATING
        return self._rows.requested.get((tenant, batch_id)) if is_validating else None

    def _waiting_before(self, own: BatchRow) -> int:
        """Return how many older batches of the tenant wait for the quota; 0 if `own` has a reservation."""
        if (own.order.tenant, own.order.batch_id) in self._rows.enqueued:
            return 0
        return sum(
            key[0] == own.order.tenant
            and row.status is BatchStatus.VALIDATING
            and key in self._rows.requested
            and key not in self._rows.enqueued
            and row.cancel_requested_at is None
            and row.order.deadline > datetime.now(UTC)
            and (row.order.starts_at, key[1]) < (own.order.starts_at, own.order.batch_id)
            for key, row in self._rows.batches.items()
        )

    async def key_budgets(self) -> dict[tuple[str, str], DailyAmounts]:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        return {(key.tenant, key.id): key.budget for key in keys if any(key.budget)}

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        row = next((key for key in keys if (key.tenant, key.id) == (tenant, key_id)), None)
        return row and KeyBudget(row.budget, used_today(self._rows, tenant, key_id))

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        keys, now = [found.key for found in self._rows.enter().api_keys.values()], datetime.now(UTC)
        revoked = {key.id for key in keys if key.revoked_at is not None and key.revoked_at >= since}
        expired = {key.id for key in keys if key.expires_at is not None and since <= key.expires_at <= now}
        return frozenset(revoked | expired)

    async def publish_usage(self, worker: str, day: date, spent: Sequence[DailyUsage]) -> None:
        rows = self._rows.enter().used
        for of, key_id, tokens, cost in spent:
            key = (of, key_id, day, worker)
            before = rows.get(key, DailyAmounts())
            rows[key] = DailyAmounts(max(before.tokens, tokens), max(before.cost, cost))

    async def delete_usage(self, before: date) -> None:
        rows = self._rows.enter().used
        for key in [key for key in rows if key[2] < before]:
            del rows[key]

    async def daily_usage(self, day: date, *, except_for: str = "") -> list[DailyUsage]:
        sums: dict[tuple[str, str], DailyAmounts] = {}
        for (tenant, key_id, on, by), used in self._rows.enter().used.items():
            if on == day and by != except_for:
                sums[tenant, key_id] = sums.get((tenant, key_id), DailyAmounts()).plus(used)
        return [DailyUsage(*key, *used) for key, used in sums.items()]

    async def count_request(self, tenant: str) -> RequestCount:
        now = time.monotonic()
        began, requests = self._rows.enter().requests.get(tenant, (now, 0))
        if now - began >= _MINUTE:
            began, requests = now, 0
        counts = self._rows.requests.items()
        self._rows.requests = {of: count for of, count in counts if now - count[0] < _MINUTE}
        self._rows.requests[tenant] = (began, requests + 1)
        return RequestCount(requests + 1, _MINUTE - (now - began))

    def _enqueued(self, tenant: str, but: str = "") -> EnqueuedWork:
        lines, tokens = 0, 0
        for (owner, batch_id), planned in self._rows.enqueued.items():
            row = self._rows.batches.get((owner, batch_id))
            if owner != tenant or batch_id == but or row is None or row.status not in LIVE_STATES:
                continue
            progress = slices(self._rows, owner, batch_id)
            left = max(planned.lines - sum(of.completed + of.failed for of in progress), 0)
            lines += left
            tokens += math.ceil(planned.tokens * left / planned.lines) if left else 0
        return EnqueuedWork(lines, tokens)
