"""Rows of webhooks. The tests of the webhook tables and of events share them."""

from datetime import timedelta

from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.database.database import Database
from batchwright.database.tables.webhooks.webhook_deliveries import (
    WebhookAttempt,
    WebhookDelivery,
)
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges, WebhookEndpoint
from tests.integration.database.rows import START, a_running_batch, after

ALL = list(EventType)
THREE_DAYS = timedelta(hours=72)


def an_endpoint(id: str = "webhook_1", **changes: object) -> WebhookEndpoint:
    row = WebhookEndpoint(
        tenant="t", id=id, url="https://a.example/", events=ALL, secret=b"\x00secret", created_at=START
    )
    return row.model_copy(update=changes)


async def create(database: Database, *rows: WebhookEndpoint) -> None:
    for row in rows:
        if row.batch_id:
            await database.webhook_endpoints.insert_for_batch(row)
        else:
            assert await database.webhook_endpoints.insert(row, limit=0)


async def recorded(
    database: Database, endpoint: str = "webhook_1", tenant: str = "t"
) -> list[WebhookDelivery]:
    """Return the deliveries to an endpoint, the oldest first."""
    found, more = await database.webhook_deliveries.page(tenant, endpoint, limit=100, after=None)
    assert not more
    return [each.delivery for each in reversed(found)]


async def types(database: Database, endpoint: str = "webhook_1", tenant: str = "t") -> list[str]:
    return [row.type.value for row in await recorded(database, endpoint, tenant)]


async def a_delivery(database: Database) -> WebhookDelivery:
    """Create an endpoint, and begin a batch. Return the delivery of the event about it."""
    await create(database, an_endpoint())
    await a_running_batch(database)
    return (await recorded(database))[0]


def attempt(at: float, reason: str = "Status 500.") -> WebhookAttempt:
    return WebhookAttempt(at=after(at), seconds=0.5, http_status=500 if reason else 204, reason=reason)


async def attempted(
    database: Database, delivery: WebhookDelivery, made: WebhookAttempt, *, is_last: bool = False
) -> bool:
    return await database.webhook_deliveries.record_attempt(
        delivery, made, is_last=is_last, disable_after=THREE_DAYS
    )


async def change(
    database: Database, changes: EndpointChanges, id: str = "webhook_1", at: float = 50
) -> WebhookEndpoint | None:
    return await database.webhook_endpoints.change("t", id, changes, at=after(at), reason="off")


async def endpoint_of(database: Database, id: str = "webhook_1") -> WebhookEndpoint:
    row = await database.webhook_endpoints.get("t", id)
    assert row is not None
    return row
