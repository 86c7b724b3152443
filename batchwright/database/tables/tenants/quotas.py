"""Tables of tenants' quotas and limits, and of the amounts that count towards the quotas.

The numbers of enqueued lines and tokens are not stored. They are computed from those batches of the tenant
that have not ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Protocol

from batchwright.database.driver import Row, Session
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_list import BatchList
from batchwright.database.tables.tenants.admissions import PostgresAdmissions
from batchwright.database.tables.tenants.daily_usage import parse_budget, parse_used
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
from batchwright.rules.tenants.quotas import (
    DailyAmounts,
    EnqueuedWork,
    QuotaExcess,
    QuotaLimits,
    queue_behind,
)
from batchwright.rules.token_costs import amount_of, amount_text

_MAX_DELETED_COUNTS = 10  # at the beginning of each minute of a tenant


class QuotasTable(Protocol):
    async def get(self, tenant: str) -> TenantQuotas:
        """Return the limits that were set for a tenant. Limits that were not set are None."""
        ...

    async def all(self) -> list[QuotaRow]:
        """Return the limits of all tenants for which limits were set, sorted by tenant."""
        ...

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> TenantQuotas:
        """Set the limits in `changes`, and return all limits of the tenant that are set.

        The keys of `changes` are names of fields of TenantQuotas. The value None removes the limit, so that
        the default applies.
        """
        ...

    async def clear(self, tenant: str) -> None:
        """Delete all limits that were set for a tenant, so that the defaults apply."""
        ...

    async def shares(self, max_age: timedelta) -> list[TenantShare]:
        """Return the weights (shares of the capacity) and limits that were set for tenants, sorted by tenant.

        Each item has the ids of the live workers that send lines for the tenant. A worker is live if its
        latest heartbeat is at most `max_age` old.
        """
        ...

    async def key_caps(self, max_age: timedelta) -> list[KeyCap]:
        """Return the API keys that have a cap on requests in flight, each with its cap, sorted by key id.

        Revoked keys are left out. Each item also has the ids of the live workers that send lines for the key.
        A worker is live if its latest heartbeat is at most `max_age` old.
        """
        ...

    async def used(self, tenant: str) -> QuotaUsage: ...

    async def stored(self, tenant: str) -> int:
        """Return how many bytes of a tenant count towards its storage quota.

        The sum includes these items of the tenant:

        - Files.
        - Pending uploads. An upload counts with its announced size. If its parts are together larger than
          this size, the upload counts with the size of the parts.
        - Single calls.
        - Objects that the ingestion of a batch has written, until the batch has ended.
        """
        ...

    async def reserve(
        self,
        tenant: str,
        batch_id: str,
        requested: EnqueuedWork,
        limits: QuotaLimits,
        *,
        waits: bool = False,
    ) -> QuotaExcess | None:
        """Reserve lines and tokens of a tenant's quotas for a batch in validation.

        Lines without a result in the tenant's other batches count towards the limits, too.

        - If the status of the batch is not `validating`, do nothing and return None.
        - If the tenant would exceed one of its `limits`, reserve nothing and return the exceeded quota.
        - If `waits` is True, lines or tokens are limited, this batch has no reservation yet, and older
          batches of the tenant wait for a reservation, reserve nothing and return a quota. This batch must
          wait until the older batches have their reservations.
        - In all other cases, reserve the lines and tokens and return None.

        Args:
            requested: number of lines and tokens to reserve.
            waits: True if the batch can wait for a reservation. If the batch must wait, its earlier
                reservation is deleted. A batch that alone would exceed a limit does not wait.
        """
        ...

    async def requested(self, tenant: str, batch_id: str) -> EnqueuedWork | None:
        """Return the numbers of lines and tokens for which a batch waits (see `reserve`).

        Return None if the batch does not wait for a reservation.
        """
        ...

    async def key_budgets(self) -> dict[tuple[str, str], DailyAmounts]:
        """Return the daily budgets of all API keys that have a budget, by tenant and key id."""
        ...

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        """Return the daily budget of an API key, and what the key has used today.

        Return None if the tenant has no such key.
        """
        ...

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        """Return the ids of the API keys that were revoked, or have expired, since the time `since`."""
        ...

    async def publish_usage(self, worker: str, day: date, spent: Sequence[DailyUsage]) -> None:
        """Store the tokens and the cost that the worker `worker` has counted on `day`, by tenant and API key.

        The numbers are totals of the day. A stored number is replaced only if the new number is greater.
        """
        ...

    async def delete_usage(self, before: date) -> None: ...

    async def daily_usage(self, day: date, *, except_for: str = "") -> list[DailyUsage]:
        """Return the tokens and the cost that all workers have counted on a day, by tenant and API key.

        Args:
            except_for: name of a worker whose numbers are left out; empty to include all workers.
        """
        ...

    async def count_request(self, tenant: str) -> RequestCount:
        """Count a new API request of the tenant. Return the number of its requests in the current minute.

        Requests to all API processes count. If the tenant has no current minute, this request begins one. In
        this case, also delete some rows of ended minutes of all tenants. So the table stays small even if
        callers invent names of tenants.
        """
        ...


@dataclass(frozen=True)
class QuotaQueries:
    get: str
    all: str
    make: str
    lock_row: str
    put: str
    clear: str
    shares: str
    key_caps: str
    enqueued: str
    enqueue: str
    request: str
    requested: str
    waiting_before: str
    is_validating: str
    stored: str
    requests: str
    count_request: str
    delete_request_counts: str
    key_budgets: str
    key_budget: str
    withdrawn_keys: str
    publish_usage: str
    delete_usage: str
    daily_usage: str
    used_today: str
    webhooks: str


class PostgresQuotas(QuotasTable):
    def __init__(
        self, connections: ConnectionPool, batch_list: BatchList, admissions: PostgresAdmissions
    ) -> None:
        self._connections = connections
        self._batch_list = batch_list
        self._admissions = admissions
        self._sql = queries(QuotaQueries, "quotas")

    async def get(self, tenant: str) -> TenantQuotas:
        record = await self._connections.fetchrow(self._sql.get, tenant)
        return TenantQuotas() if record is None else _parse_quotas(record)

    async def all(self) -> list[QuotaRow]:
        records = await self._connections.fetch(self._sql.all)
        return [QuotaRow(record["tenant"], _parse_quotas(record), record["changed_at"]) for record in records]

    async def change(self, tenant: str, changes: dict[str, object], at: datetime) -> TenantQuotas:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.make, tenant, at)
            record = await session.fetchrow(self._sql.lock_row, tenant)
            own = TenantQuotas() if record is None else _parse_quotas(record)
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
                own.weight,
                own.max_in_flight,
                own.max_priority,
                own.over_quota,
                own.backend_requests_per_minute,
                own.backend_tokens_per_minute,
                own.window_too_short,
                own.webhooks,
                own.cost_per_day,
            )
            return own

    async def clear(self, tenant: str) -> None:
        await self._connections.execute(self._sql.clear, tenant)

    async def shares(self, max_age: timedelta) -> list[TenantShare]:
        records = await self._connections.fetch(self._sql.shares, max_age)
        return [TenantShare(*(record[name] for name in TenantShare._fields)) for record in records]

    async def key_caps(self, max_age: timedelta) -> list[KeyCap]:
        records = await self._connections.fetch(self._sql.key_caps, max_age)
        return [KeyCap(record["key_id"], record["max_in_flight"], record["workers"]) for record in records]

    async def used(self, tenant: str) -> QuotaUsage:
        async with self._connections.session() as session:
            enqueued = await self._enqueued(session, tenant, but="")
            counted = await session.fetchrow(self._sql.requests, tenant)
            spent = await session.fetchrow(self._sql.used_today, tenant)
            webhooks = await session.fetchrow(self._sql.webhooks, tenant)
        return QuotaUsage(
            live_batches=await self._batch_list.count_live(tenant),
            stored_bytes=await self.stored(tenant),
            enqueued_lines=enqueued.lines,
            enqueued_tokens=enqueued.tokens,
            requests_per_minute=0 if counted is None else counted["requests"],
            tokens_per_day=0 if spent is None else spent["tokens"],
            cost_per_day=0 if spent is None else amount_of(spent["cost"]),
            webhooks=0 if webhooks is None else webhooks["count"],
        )

    async def stored(self, tenant: str) -> int:
        record = await self._connections.fetchrow(self._sql.stored, tenant)
        return 0 if record is None else record["bytes"]

    async def reserve(
        self,
        tenant: str,
        batch_id: str,
        requested: EnqueuedWork,
        limits: QuotaLimits,
        *,
        waits: bool = False,
    ) -> QuotaExcess | None:
        if waits and await self.requested(tenant, batch_id) == requested:
            # An attempt of a batch that still waits behind others changes nothing, so it does not take the
            # tenant's lock. With thousands of waiting batches, new batches would time out on the lock.
            async with self._connections.session() as session:
                found = await self._excess(session, tenant, batch_id, requested, limits, waits=True)
            if found is not None and found.before and found.can_wait:
                return found
        async with self._admissions.transaction(tenant) as session:
            if await session.fetchrow(self._sql.is_validating, tenant, batch_id) is None:
                return None
            found = await self._excess(session, tenant, batch_id, requested, limits, waits=waits)
            if found is None or (waits and found.can_wait):
                sql = self._sql.enqueue if found is None else self._sql.request
                await session.execute(sql, tenant, batch_id, requested.lines, requested.tokens)
            return found

    async def _excess(
        self,
        session: Session,
        tenant: str,
        batch_id: str,
        requested: EnqueuedWork,
        limits: QuotaLimits,
        *,
        waits: bool,
    ) -> QuotaExcess | None:
        """Return the quota because of which `reserve` must reserve nothing; None if it can reserve.

        If the batch would exceed a quota with the `requested` lines and tokens, return this quota. Otherwise,
        if `waits` is True, this batch has no reservation yet, and older batches of the tenant wait for one,
        return a quota of lines or tokens that has a limit.
        """
        waiting = await session.fetchrow(self._sql.waiting_before, tenant, batch_id) if waits else None
        used = await self._enqueued(session, tenant, batch_id)
        return queue_behind(limits, used, requested, 0 if waiting is None else waiting["batches"])

    async def requested(self, tenant: str, batch_id: str) -> EnqueuedWork | None:
        record = await self._connections.fetchrow(self._sql.requested, tenant, batch_id)
        return None if record is None else EnqueuedWork(record["lines"], record["tokens"])

    async def count_request(self, tenant: str) -> RequestCount:
        record = await self._connections.fetchrow(self._sql.count_request, tenant)
        assert record is not None, "the statement returns the row it writes"
        if record["requests"] == 1:
            await self._connections.execute(self._sql.delete_request_counts, _MAX_DELETED_COUNTS)
        return RequestCount(record["requests"], record["seconds_left"])

    async def key_budgets(self) -> dict[tuple[str, str], DailyAmounts]:
        records = await self._connections.fetch(self._sql.key_budgets)
        return {(record["tenant"], record["id"]): parse_budget(record) for record in records}

    async def key_budget(self, tenant: str, key_id: str) -> KeyBudget | None:
        record = await self._connections.fetchrow(self._sql.key_budget, tenant, key_id)
        return None if record is None else KeyBudget(parse_budget(record), parse_used(record))

    async def withdrawn_keys(self, since: datetime) -> frozenset[str]:
        records = await self._connections.fetch(self._sql.withdrawn_keys, since)
        return frozenset(record["id"] for record in records)

    async def publish_usage(self, worker: str, day: date, spent: Sequence[DailyUsage]) -> None:
        if not spent:
            return
        tenants, key_ids, tokens, costs = map(list, zip(*spent, strict=True))
        costs = [amount_text(cost) for cost in costs]
        await self._connections.execute(self._sql.publish_usage, worker, day, tenants, key_ids, tokens, costs)

    async def delete_usage(self, before: date) -> None:
        await self._connections.execute(self._sql.delete_usage, before)

    async def daily_usage(self, day: date, *, except_for: str = "") -> list[DailyUsage]:
        records = await self._connections.fetch(self._sql.daily_usage, except_for, day)
        return [DailyUsage(record["tenant"], record["key_id"], *parse_used(record)) for record in records]

    async def _enqueued(self, session: Session, tenant: str, but: str) -> EnqueuedWork:
        record = await session.fetchrow(self._sql.enqueued, tenant, but)
        return EnqueuedWork(0, 0) if record is None else EnqueuedWork(record["lines"], record["tokens"])


def _parse_quotas(record: Row) -> TenantQuotas:
    return TenantQuotas.model_validate(
        {name: value for name, value in record.items() if name not in ("tenant", "changed_at")}
    )
