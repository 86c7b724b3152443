"""Fake tables of webhook endpoints and deliveries, in memory."""

from datetime import datetime, timedelta
from hashlib import md5
from uuid import uuid4

from batchwright.contracts.api_objects.webhook_events import TEST_BATCH, EventType
from batchwright.contracts.api_objects.webhooks import DeliveryStatus
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.tables.webhooks.webhook_deliveries import (
    SHOWN_ATTEMPTS,
    ListedDelivery,
    UnstartedDelivery,
    WebhookAttempt,
    WebhookDeliveriesTable,
    WebhookDelivery,
    disabled_reason,
    status_after,
)
from batchwright.database.tables.webhooks.webhook_endpoints import (
    EndpointChanges,
    WebhookEndpoint,
    WebhookEndpointsTable,
)
from tests.fakes.tables.rows import Rows, files_follow, position


def record_event(rows: Rows, order: BatchOrder, type: str, at: datetime) -> None:
    record_event_of(rows, order.tenant, order.batch_id, type, at)


def record_event_of(
    rows: Rows, tenant: str, batch_id: str, type: str, at: datetime, occurrence: str = ""
) -> None:
    """Record an event for each endpoint that receives this type, as the triggers of PostgreSQL do."""
    digest = md5(f"{batch_id}/{type}/{occurrence}".encode(), usedforsecurity=False).hexdigest()
    known = {(row.endpoint_id, row.event_id) for row in rows.webhook_deliveries.values()}
    for endpoint in rows.webhook_endpoints.values():
        wanted = endpoint.tenant == tenant and endpoint.batch_id in ("", batch_id)
        if wanted and endpoint.disabled_at is None and type in endpoint.events:
            row = WebhookDelivery(
                tenant=tenant,
                id=f"wh_{uuid4().hex}",
                endpoint_id=endpoint.id,
                batch_id=batch_id,
                event_id=f"evt_{digest}",
                type=EventType(type),
                occurred_at=at,
                created_at=rows.clock(),
            )
            if (row.endpoint_id, row.event_id) not in known:
                rows.webhook_deliveries[tenant, row.id] = row


class MemoryWebhookEndpoints(WebhookEndpointsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, row: WebhookEndpoint, limit: int) -> bool:
        rows = self._rows.enter().webhook_endpoints
        taken = sum(each.tenant == row.tenant and not each.batch_id for each in rows.values())
        if limit and taken >= limit:
            return False
        rows.setdefault((row.tenant, row.id), row)
        return True

    async def insert_for_batch(self, row: WebhookEndpoint) -> WebhookEndpoint:
        return self._rows.enter().webhook_endpoints.setdefault((row.tenant, row.id), row)

    async def get(self, tenant: str, id: str) -> WebhookEndpoint | None:
        return self._rows.enter().webhook_endpoints.get((tenant, id))

    async def page(
        self, tenant: str, *, limit: int, after: str | None, batch_id: str = ""
    ) -> tuple[list[WebhookEndpoint], bool]:
        rows = self._rows.enter().webhook_endpoints.values()
        mine = [row for row in rows if (row.tenant, row.batch_id) == (tenant, batch_id)]
        mine.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        mine = mine[position([row.id for row in mine], after) :]
        return mine[:limit], len(mine) > limit

    async def change(
        self, tenant: str, id: str, changes: EndpointChanges, *, at: datetime, reason: str
    ) -> WebhookEndpoint | None:
        row = await self.get(tenant, id)
        if row is None:
            return None
        update = {name: value for name, value in changes._asdict().items() if value is not None}
        enabled = update.pop("enabled", None)
        if enabled is True and row.disabled_at is not None:
            update |= {"disabled_at": None, "disabled_reason": "", "failing_since": None}
        elif enabled is False and row.disabled_at is None:
            update |= {"disabled_at": at, "disabled_reason": reason}
        return self._put(row, **update)

    async def rotate(
        self, tenant: str, id: str, secret: bytes, previous_until: datetime
    ) -> WebhookEndpoint | None:
        row = await self.get(tenant, id)
        if row is None:
            return None
        return self._put(row, secret=secret, previous_secret=row.secret, previous_until=previous_until)

    async def delete(self, tenant: str, id: str) -> bool:
        rows = self._rows.enter()
        for key, row in list(rows.webhook_deliveries.items()):
            if (row.tenant, row.endpoint_id) == (tenant, id):
                del rows.webhook_deliveries[key]
                rows.webhook_attempts.pop(key, None)
        return rows.webhook_endpoints.pop((tenant, id), None) is not None

    def _put(self, row: WebhookEndpoint, **changes: object) -> WebhookEndpoint:
        changed = row.model_copy(update=changes)
        self._rows.webhook_endpoints[row.tenant, row.id] = changed
        return changed


def _kept(row: WebhookDelivery) -> bytes | None:
    """Return the body that is stored after a delivery has ended. The body of a callback of a single job is
    removed.
    """
    return None if row.batch_id.startswith("job_") else row.body


class MemoryWebhookDeliveries(WebhookDeliveriesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert_test(self, row: WebhookDelivery) -> None:
        if (row.tenant, row.endpoint_id) in self._rows.enter().webhook_endpoints:
            fresh = row.model_copy(update={"created_at": self._rows.clock()})
            self._rows.webhook_deliveries.setdefault((row.tenant, row.id), fresh)

    async def unstarted(self, limit: int) -> list[UnstartedDelivery]:
        rows = sorted(
            self._rows.enter().webhook_deliveries.values(), key=lambda row: (row.created_at, row.id)
        )
        ready = [row for row in rows if not row.started and not self._waits_for_files(row)]
        return [
            UnstartedDelivery(
                *(row.tenant, row.id, row.endpoint_id, row.batch_id, row.replays, row.created_at),
                is_of_one=self._is_of_one(row),
            )
            for row in ready[:limit]
        ]

    def _waits_for_files(self, row: WebhookDelivery) -> bool:
        batch = self._rows.batches.get((row.tenant, row.batch_id))
        return batch is not None and files_follow(batch)

    def _is_of_one(self, row: WebhookDelivery) -> bool:
        endpoint = self._rows.webhook_endpoints.get((row.tenant, row.endpoint_id))
        return endpoint is not None and bool(endpoint.batch_id)

    async def record_start(self, delivery: UnstartedDelivery) -> None:
        row = await self.get(delivery.tenant, delivery.id)
        if row is not None and row.replays == delivery.replays:
            self._put(row, started=True, started_at=self._rows.clock())

    async def get(self, tenant: str, id: str) -> WebhookDelivery | None:
        return self._rows.enter().webhook_deliveries.get((tenant, id))

    async def keep_body(self, tenant: str, id: str, body: bytes) -> bytes:
        row = await self.get(tenant, id)
        if row is None or row.body is not None:
            return body if row is None or row.body is None else row.body
        self._put(row, body=body)
        return body

    async def record_attempt(
        self, delivery: WebhookDelivery, attempt: WebhookAttempt, *, is_last: bool, disable_after: timedelta
    ) -> bool:
        row = await self.get(delivery.tenant, delivery.id)
        endpoint = self._rows.webhook_endpoints.get((delivery.tenant, delivery.endpoint_id))
        if row is None or endpoint is None:
            return False
        number = row.attempts + 1
        status = status_after(attempt, is_last=is_last)
        self._put(row, attempts=number, status=status, body=row.body if status == "pending" else _kept(row))
        attempts = self._rows.webhook_attempts.setdefault((row.tenant, row.id), [])
        attempts.append(attempt.model_copy(update={"number": number}))
        if attempt.reason and delivery.batch_id == TEST_BATCH:
            return False
        since = (endpoint.failing_since or attempt.at) if attempt.reason else None
        update: dict[str, object] = {"failing_since": since}
        disables = endpoint.disabled_at is None and since is not None and since <= attempt.at - disable_after
        if disables:
            update |= {"disabled_at": attempt.at, "disabled_reason": disabled_reason(disable_after)}
        self._rows.webhook_endpoints[endpoint.tenant, endpoint.id] = endpoint.model_copy(update=update)
        return disables

    async def give_up(self, tenant: str, id: str, reason: str) -> None:
        row = await self.get(tenant, id)
        if row is not None and row.status == "pending":
            self._put(row, status="failed", reason=reason, body=_kept(row))

    async def replay(self, tenant: str, id: str, *, lost_before: datetime) -> bool:
        row = await self.get(tenant, id)
        if row is None:
            return False
        is_lost = row.started and row.started_at is not None and row.started_at <= lost_before
        if row.status == "pending" and not is_lost:
            return False
        self._put(row, status="pending", reason="", replays=row.replays + 1, started=False)
        return True

    async def page(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        limit: int,
        after: str | None,
        status: DeliveryStatus | None = None,
    ) -> tuple[list[ListedDelivery], bool]:
        rows = self._rows.enter().webhook_deliveries.values()
        mine = [row for row in rows if (row.tenant, row.endpoint_id) == (tenant, endpoint_id)]
        mine.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        mine = mine[position([row.id for row in mine], after) :]
        mine = [row for row in mine if status in (None, row.status)]
        return [self._listed(row) for row in mine[:limit]], len(mine) > limit

    async def one(self, tenant: str, endpoint_id: str, id: str) -> ListedDelivery | None:
        row = await self.get(tenant, id)
        return None if row is None or row.endpoint_id != endpoint_id else self._listed(row)

    async def count_old(self, before: datetime) -> int:
        return len(self._old_deliveries(before)) + len(self._old_endpoints(before))

    async def remove_old(self, before: datetime, limit: int) -> int:
        deliveries, endpoints = self._old_deliveries(before)[:limit], self._old_endpoints(before)[:limit]
        for row in deliveries:
            del self._rows.webhook_deliveries[row.tenant, row.id]
        for endpoint in endpoints:
            await MemoryWebhookEndpoints(self._rows).delete(endpoint.tenant, endpoint.id)
        return len(deliveries) + len(endpoints)

    def _old_deliveries(self, before: datetime) -> list[WebhookDelivery]:
        rows = self._rows.enter().webhook_deliveries.values()
        return [
            row
            for row in rows
            if row.created_at <= before
            and (row.status != "pending" or (row.started_at or row.created_at) <= before)
        ]

    def _old_endpoints(self, before: datetime) -> list[WebhookEndpoint]:
        return [
            row
            for row in self._rows.enter().webhook_endpoints.values()
            if row.batch_id
            and row.created_at <= before
            and (row.tenant, row.batch_id) not in self._rows.batches
        ]

    def _listed(self, row: WebhookDelivery) -> ListedDelivery:
        attempts = self._rows.webhook_attempts.get((row.tenant, row.id), [])
        return ListedDelivery(row, attempts[-SHOWN_ATTEMPTS:])

    def _put(self, row: WebhookDelivery, **changes: object) -> None:
        self._rows.webhook_deliveries[row.tenant, row.id] = row.model_copy(update=changes)
