"""Tables of webhook deliveries and of the attempts to send them.

A delivery is one event that must be sent to one endpoint. Database triggers insert the delivery in the same
transaction as the change that the event reports. So no event is lost.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from pydantic import Field, TypeAdapter

from batchwright.contracts.api_objects.webhook_events import TEST_BATCH, EventType
from batchwright.contracts.api_objects.webhooks import DeliveryStatus
from batchwright.contracts.message import Message
from batchwright.database.driver import Row
from batchwright.database.list_positions import LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries

SHOWN_ATTEMPTS = 50  # the latest attempts of a delivery


class UnstartedDelivery(NamedTuple):
    """A delivery whose Temporal workflow must be started. The workflow sends one event to one endpoint.

    Attributes:
        replays: number of times that a client has requested to send the event again.
        is_of_one: True if the endpoint receives the events of only one batch or call, False if it receives
            the events of all batches.
    """

    tenant: str
    id: str
    endpoint_id: str
    batch_id: str
    replays: int
    created_at: datetime
    is_of_one: bool


class WebhookAttempt(Message):
    """One attempt to send an event to its endpoint. `http_status` is None if no response arrived.

    `reason` says why the attempt failed; it is empty if the attempt succeeded.
    """

    number: int = 0  # set by the table
    at: datetime
    seconds: float
    http_status: int | None = None
    reason: str = ""


_ATTEMPTS = TypeAdapter(list[WebhookAttempt])


class WebhookDelivery(Message):
    """An event that is or was sent to one endpoint.

    If `WebhookDeliveriesTable.give_up` has ended the delivery, `reason` says why; otherwise it is empty. The
    reasons of failed attempts are in `WebhookAttempt`. `started_at` is the time at which a workflow was last
    started for the delivery; None if no workflow was started.
    """

    tenant: str
    id: str
    endpoint_id: str
    batch_id: str
    event_id: str
    type: EventType
    occurred_at: datetime
    created_at: datetime
    body: bytes | None = Field(default=None, repr=False)
    status: DeliveryStatus = "pending"
    reason: str = ""
    attempts: int = 0
    replays: int = 0
    started: bool = False
    started_at: datetime | None = None


class ListedDelivery(NamedTuple):
    """A delivery (an event to send to one webhook endpoint) and its latest `SHOWN_ATTEMPTS` attempts, sorted
    by time, the oldest first.
    """

    delivery: WebhookDelivery
    attempts: list[WebhookAttempt]


class WebhookDeliveriesTable(Protocol):
    async def insert_test(self, row: WebhookDelivery) -> None:
        """Insert the delivery of a test event, which a client requested. The event is not about a batch.

        If the tenant has no endpoint with the id in `row`, nothing is inserted.
        """
        ...

    async def unstarted(self, limit: int) -> list[UnstartedDelivery]:
        """Return at most `limit` deliveries of all tenants whose workflow must be started, oldest first.

        A delivery is an event to send to one webhook endpoint. Events of a batch are left out while the files
        of the batch are not written yet.
        """
        ...

    async def record_start(self, delivery: UnstartedDelivery) -> None:
        """Record that the workflow of a delivery was started.

        If a client has requested a replay since `unstarted` returned `delivery`, change nothing. The workflow
        for the replay must still be started.
        """
        ...

    async def get(self, tenant: str, id: str) -> WebhookDelivery | None: ...

    async def keep_body(self, tenant: str, id: str, body: bytes) -> bytes:
        """Store `body` as the request body of a delivery, unless a body is stored already. Return the stored
        body.

        All attempts of the delivery call this method, so that they send the same bytes.
        """
        ...

    async def record_attempt(
        self, delivery: WebhookDelivery, attempt: WebhookAttempt, *, is_last: bool, disable_after: timedelta
    ) -> bool:
        """Record an attempt of a delivery. Return True if this attempt disables the endpoint.

        The delivery ends if the attempt succeeded or `is_last` is True. If the delivery has ended and is
        about a job (a call of the route `/queue`), also delete the stored body of the delivery, because the
        body contains the result of the job.

        Args:
            is_last: True if no other attempt follows. If this attempt failed, the whole delivery has failed.
            disable_after: if all attempts have failed for this length of time, the endpoint is disabled.
                Failed test events do not count, because they are retried for minutes only.
        """
        ...

    async def give_up(self, tenant: str, id: str, reason: str) -> None:
        """Record that a pending delivery has failed because of `reason`.

        If the delivery is not pending, change nothing. If the delivery is about a job (a call of the route
        `/queue`), also delete the stored body of the delivery.
        """
        ...

    async def replay(self, tenant: str, id: str, *, lost_before: datetime) -> bool:
        """Set the status of a delivery to pending, so that its event is sent again, and return True.

        The delivery must be in one of two states:

        - The status is delivered or failed.
        - The status is pending, but the workflow was started at the time `lost_before` or earlier. Choose
          `lost_before` so early that a workflow from that time cannot still be running.

        In any other state, or if the tenant has no such delivery, change nothing and return False.
        """
        ...

    async def page(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        limit: int,
        after: str | None,
        status: DeliveryStatus | None = None,
    ) -> tuple[list[ListedDelivery], bool]:
        """Return at most `limit` deliveries to an endpoint, newest first.

        The second item is True if more follow.

        Args:
            after: id of the last delivery of the previous page; None for the first page.
            status: return only deliveries with this status; None for all.

        Raises UnknownCursor if the tenant has no delivery `after`.
        """
        ...

    async def one(self, tenant: str, endpoint_id: str, id: str) -> ListedDelivery | None: ...

    async def count_old(self, before: datetime) -> int:
        """Return how many deliveries and endpoints `remove_old` would delete without a limit."""
        ...

    async def remove_old(self, before: datetime, limit: int) -> int:
        """Delete at most `limit` old deliveries and `limit` old endpoints. Return how many rows were deleted.

        A row is old if it was created at the time `before` or earlier. Two kinds of old rows are not deleted:

        - A pending delivery whose workflow was started after `before`, because the workflow may still run.
        - An endpoint for all batches of a tenant, or for a batch that still has a row.
        """
        ...


@dataclass(frozen=True)
class WebhookDeliveryQueries:
    insert_test: str
    unstarted: str
    record_start: str
    get: str
    keep_body: str
    lock_endpoint: str
    record_attempt: str
    record_success: str
    record_failure: str
    give_up: str
    replay: str
    position: str
    page: str
    one: str
    count_old: str
    remove_old: str
    remove_endpoints: str


class PostgresWebhookDeliveries(WebhookDeliveriesTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(WebhookDeliveryQueries, "webhook_deliveries")

    async def insert_test(self, row: WebhookDelivery) -> None:
        place = (row.tenant, row.endpoint_id, row.id, row.batch_id)
        await self._connections.execute(
            self._sql.insert_test, *place, row.event_id, row.type, row.occurred_at
        )

    async def unstarted(self, limit: int) -> list[UnstartedDelivery]:
        found = await self._connections.fetch(self._sql.unstarted, limit)
        return [UnstartedDelivery(*each.values()) for each in found]

    async def record_start(self, delivery: UnstartedDelivery) -> None:
        await self._connections.execute(
            self._sql.record_start, delivery.tenant, delivery.id, delivery.replays
        )

    async def get(self, tenant: str, id: str) -> WebhookDelivery | None:
        found = await self._connections.fetchrow(self._sql.get, tenant, id)
        return None if found is None else parse_row(WebhookDelivery, found)

    async def keep_body(self, tenant: str, id: str, body: bytes) -> bytes:
        found = await self._connections.fetchrow(self._sql.keep_body, tenant, id, body)
        return body if found is None else found["body"]

    async def record_attempt(
        self, delivery: WebhookDelivery, attempt: WebhookAttempt, *, is_last: bool, disable_after: timedelta
    ) -> bool:
        tenant, endpoint = delivery.tenant, delivery.endpoint_id
        status = status_after(attempt, is_last=is_last)
        result = (attempt.at, attempt.seconds, attempt.http_status, attempt.reason)
        async with self._connections.transaction() as session:
            await session.fetchrow(self._sql.lock_endpoint, tenant, endpoint)
            await session.execute(self._sql.record_attempt, tenant, delivery.id, status, *result)
            if not attempt.reason:
                await session.execute(self._sql.record_success, tenant, endpoint)
                return False
            if delivery.batch_id == TEST_BATCH:
                return False
            since, reason = attempt.at - disable_after, disabled_reason(disable_after)
            found = await session.fetchrow(
                self._sql.record_failure, tenant, endpoint, attempt.at, since, reason
            )
            return found is not None

    async def give_up(self, tenant: str, id: str, reason: str) -> None:
        await self._connections.execute(self._sql.give_up, tenant, id, reason)

    async def replay(self, tenant: str, id: str, *, lost_before: datetime) -> bool:
        return await self._connections.fetchrow(self._sql.replay, tenant, id, lost_before) is not None

    async def page(
        self,
        tenant: str,
        endpoint_id: str,
        *,
        limit: int,
        after: str | None,
        status: DeliveryStatus | None = None,
    ) -> tuple[list[ListedDelivery], bool]:
        async with self._connections.session() as session:
            position = LAST_POSITION
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            found = await session.fetch(
                self._sql.page, tenant, *position, limit + 1, endpoint_id, SHOWN_ATTEMPTS, status
            )
        return [_parse_listed(each) for each in found[:limit]], len(found) > limit

    async def one(self, tenant: str, endpoint_id: str, id: str) -> ListedDelivery | None:
        found = await self._connections.fetchrow(self._sql.one, tenant, endpoint_id, id, SHOWN_ATTEMPTS)
        return None if found is None else _parse_listed(found)

    async def count_old(self, before: datetime) -> int:
        found = await self._connections.fetchrow(self._sql.count_old, before)
        return 0 if found is None else found["count"]

    async def remove_old(self, before: datetime, limit: int) -> int:
        gone = 0
        for sql in (self._sql.remove_old, self._sql.remove_endpoints):
            found = await self._connections.fetchrow(sql, before, limit)
            gone += 0 if found is None else found["count"]
        return gone


def status_after(attempt: WebhookAttempt, *, is_last: bool) -> DeliveryStatus:
    """Return the status of a delivery after an attempt to send its event to the webhook endpoint.

    `is_last` is True if no other attempt follows.
    """
    if not attempt.reason:
        return "delivered"
    return "failed" if is_last else "pending"


def disabled_reason(disable_after: timedelta) -> str:
    hours = round(disable_after.total_seconds() / 3600)
    return f"Every delivery has failed for {hours} hours."


def _parse_listed(record: Row) -> ListedDelivery:
    return ListedDelivery(
        parse_row(WebhookDelivery, record), _ATTEMPTS.validate_json(record["attempt_list"] or "[]")
    )
