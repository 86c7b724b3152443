"""Table of webhook endpoints: URLs that receive events about batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from pydantic import Field

from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.contracts.message import Message
from batchwright.database.driver import Session
from batchwright.database.list_positions import LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries


class WebhookEndpoint(Message):
    """An endpoint of a tenant: a URL that receives events about batches.

    Attributes:
        batch_id: if not empty, the endpoint receives only the events of this batch. If empty, it receives the
            events of all batches of the tenant.
        secret: the secret that signs webhooks, as `StoredSecrets.encrypt` returned it. Never show or log it.
        previous_secret: the secret before `secret`. Until `previous_until`, webhooks are signed with both
            secrets. None if the secret was never replaced.
        failing_since: time of the first failed attempt after the last success; None if no attempt has failed
            after the last success.
        disabled_at: when the endpoint was disabled; None while it is enabled.
    """

    tenant: str
    id: str
    batch_id: str = ""
    url: str
    events: list[EventType]
    description: str = ""
    details: bool = False
    secret: bytes = Field(repr=False)
    previous_secret: bytes | None = Field(default=None, repr=False)
    previous_until: datetime | None = None
    created_at: datetime
    failing_since: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str = ""

    def secrets(self, at: datetime) -> list[bytes]:
        """Return the secrets that sign a webhook sent at the time `at`, the current one first.

        The previous secret is included only before `previous_until`.
        """
        if self.previous_secret is None or self.previous_until is None or self.previous_until <= at:
            return [self.secret]
        return [self.secret, self.previous_secret]


class EndpointChanges(NamedTuple):
    """New values for the fields of an endpoint. None leaves a field unchanged.

    `enabled` is True to enable the endpoint, and False to disable it.
    """

    url: str | None = None
    events: Sequence[EventType] | None = None
    description: str | None = None
    details: bool | None = None
    enabled: bool | None = None


class WebhookEndpointsTable(Protocol):
    """Endpoints of all tenants.

    If the tenant has no such endpoint, `get`, `change` and `rotate` return None, and `delete` returns False.
    """

    async def insert(self, row: WebhookEndpoint, limit: int) -> bool:
        """Insert an endpoint that receives the events of all batches of its tenant, and return True.

        If the tenant already has `limit` such endpoints, insert nothing and return False. If `limit` is `0`,
        there is no limit.
        """
        ...

    async def insert_for_batch(self, row: WebhookEndpoint) -> WebhookEndpoint:
        """Insert the endpoint of one batch, and return it.

        If the tenant already has an endpoint with this id, change nothing and return the stored endpoint.
        """
        ...

    async def get(self, tenant: str, id: str) -> WebhookEndpoint | None: ...

    async def page(
        self, tenant: str, *, limit: int, after: str | None, batch_id: str = ""
    ) -> tuple[list[WebhookEndpoint], bool]:
        """Return at most `limit` endpoints of a tenant, newest first. The second item is True if more follow.

        Args:
            after: id of the last endpoint of the previous page; None for the first page.
            batch_id: return only the endpoints of this batch. If it is empty, return only the endpoints that
                receive the events of all batches.

        Raises UnknownCursor if the tenant has no endpoint `after`.
        """
        ...

    async def change(
        self, tenant: str, id: str, changes: EndpointChanges, *, at: datetime, reason: str
    ) -> WebhookEndpoint | None:
        """Change those fields of an endpoint that are not None in `changes`, and return the endpoint.

        Return None if there is no such endpoint. If the change enables a disabled endpoint, earlier failures
        of the endpoint no longer count.

        Args:
            at: time of the change. If the change disables the endpoint, `at` is stored as `disabled_at`.
            reason: if the change disables the endpoint, `reason` is stored as `disabled_reason`.
        """
        ...

    async def rotate(
        self, tenant: str, id: str, secret: bytes, previous_until: datetime
    ) -> WebhookEndpoint | None:
        """Replace the secret of an endpoint by `secret`, and return the endpoint.

        Return None if there is no such endpoint. Webhooks are signed with both the old and the new secret
        until `previous_until`.
        """
        ...

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete an endpoint and its deliveries. Return False if there is no such endpoint."""
        ...


@dataclass(frozen=True)
class WebhookEndpointQueries:
    lock_tenant: str
    count: str
    insert: str
    get: str
    position: str
    page: str
    change: str
    rotate: str
    delete: str


class PostgresWebhookEndpoints(WebhookEndpointsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(WebhookEndpointQueries, "webhook_endpoints")

    async def insert(self, row: WebhookEndpoint, limit: int) -> bool:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock_tenant, row.tenant)
            found = await session.fetchrow(self._sql.count, row.tenant)
            if limit and found is not None and found["count"] >= limit:
                return False
            await self._insert(session, row)
            return True

    async def insert_for_batch(self, row: WebhookEndpoint) -> WebhookEndpoint:
        async with self._connections.session() as session:
            await self._insert(session, row)
            found = await session.fetchrow(self._sql.get, row.tenant, row.id)
        return row if found is None else parse_row(WebhookEndpoint, found)

    async def get(self, tenant: str, id: str) -> WebhookEndpoint | None:
        found = await self._connections.fetchrow(self._sql.get, tenant, id)
        return None if found is None else parse_row(WebhookEndpoint, found)

    async def page(
        self, tenant: str, *, limit: int, after: str | None, batch_id: str = ""
    ) -> tuple[list[WebhookEndpoint], bool]:
        async with self._connections.session() as session:
            position = LAST_POSITION
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            found = await session.fetch(self._sql.page, tenant, *position, limit + 1, batch_id)
        return [parse_row(WebhookEndpoint, each) for each in found[:limit]], len(found) > limit

    async def change(
        self, tenant: str, id: str, changes: EndpointChanges, *, at: datetime, reason: str
    ) -> WebhookEndpoint | None:
        found = await self._connections.fetchrow(
            self._sql.change,
            tenant,
            id,
            changes.url,
            None if changes.events is None else _texts(changes.events),
            changes.description,
            changes.details,
            changes.enabled,
            at,
            reason,
        )
        return None if found is None else parse_row(WebhookEndpoint, found)

    async def rotate(
        self, tenant: str, id: str, secret: bytes, previous_until: datetime
    ) -> WebhookEndpoint | None:
        found = await self._connections.fetchrow(self._sql.rotate, tenant, id, secret, previous_until)
        return None if found is None else parse_row(WebhookEndpoint, found)

    async def delete(self, tenant: str, id: str) -> bool:
        return await self._connections.fetchrow(self._sql.delete, tenant, id) is not None

    async def _insert(self, session: Session, row: WebhookEndpoint) -> None:
        await session.execute(
            self._sql.insert,
            row.tenant,
            row.id,
            row.batch_id,
            row.url,
            _texts(row.events),
            row.description,
            row.details,
            row.secret,
            row.created_at,
        )


def _texts(events: Sequence[EventType]) -> list[str]:
    return [event.value for event in events]
