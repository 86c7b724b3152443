"""Creates, changes and tests webhook endpoints (URLs to which events are sent), and sends earlier events
again.
"""

import logging
import secrets
from datetime import timedelta
from typing import NamedTuple

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    conflict,
    delivery_not_found,
    invalid_value,
    rate_limited,
    webhook_not_found,
)
from batchwright.api.schemas.webhooks import WebhookSpec
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.contracts.api_objects.openai import BatchWebhook
from batchwright.contracts.api_objects.webhook_events import TEST_BATCH, EventType
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.tables.webhooks.webhook_deliveries import ListedDelivery, WebhookDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges, WebhookEndpoint
from batchwright.rules.ids import (
    is_delivery_id,
    is_webhook_id,
    new_delivery_id,
    new_event_id,
    new_webhook_id,
    webhook_id_of_batch,
    webhook_id_of_call,
)
from batchwright.rules.tenants.attempt_limiter import AttemptLimiter
from batchwright.rules.webhooks.signatures import new_secret
from batchwright.rules.webhooks.webhook_retries import LOST_AFTER
from batchwright.temporal.codec import load_keys
from batchwright.temporal.stored_secrets import StoredSecrets, StoredSecretUnreadable
from batchwright.webhooks.submitted_url_check import REFUSED_URLS_PER_MINUTE, TooManyUrls

logger = logging.getLogger(__name__)
_SECRET_BYTES = 32
# Test events and replays of a tenant. A replay is attempted for up to 72 h, and its URL may
# belong to another person.
REQUESTED_PER_MINUTE = 60
DISABLED_BY_USER = "A user disabled it."


class EndpointWithSecret(NamedTuple):
    row: WebhookEndpoint
    secret: str


class Webhooks:
    """The service that creates, changes and tests webhook endpoints, and sends earlier events to them again.

    `get`, `change` and `rotate` raise ApiError (404) if the endpoint does not exist.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._clock = deps, deps.clock
        self._endpoints = deps.database.webhook_endpoints
        self._deliveries = deps.database.webhook_deliveries
        self._secrets = StoredSecrets(load_keys(deps.settings))
        self._requested = AttemptLimiter(REQUESTED_PER_MINUTE)

    async def create(self, spec: WebhookSpec, tenant: str) -> EndpointWithSecret:
        """Create a webhook endpoint (a URL to which events are sent) that gets the events of all batches of a
        tenant.

        Raises:
            ApiError: the URL is not allowed (400), or the tenant has too many endpoints (429).
        """
        await self.check_url(spec.url, "url", tenant)
        made = self._build(spec, tenant, new_webhook_id(), "")
        await QuotaChecks(self._deps, tenant).insert_webhook(made.row)
        return made

    async def create_for_batch(self, spec: WebhookSpec, order: BatchOrder) -> BatchWebhook:
        """Create a webhook endpoint (a URL to which events are sent) that gets the events of one batch, and
        return it. Its URL is not checked.

        A repeated call returns the same endpoint with the same secret.
        """
        made = self._build(spec, order.tenant, webhook_id_of_batch(order.batch_id), order.batch_id)
        return self._of_batch(await self._endpoints.insert_for_batch(made.row))

    async def create_for_call(self, spec: WebhookSpec, tenant: str, call_id: str) -> None:
        """Create a webhook endpoint (a URL to which events are sent) that gets an event when a call ends. A
        call is a request that a client sends without a batch. The URL is not checked.

        If the endpoint already exists, nothing changes.
        """
        made = self._build(spec, tenant, webhook_id_of_call(call_id), call_id)
        await self._endpoints.insert_for_batch(made.row)

    async def secret_of_call(self, tenant: str, call_id: str) -> str | None:
        """Return the secret that signs the event of a single call (a request that a client sends without a
        batch).

        Return None if the call has no webhook, or if the secret cannot be decrypted.
        """
        row = await self._endpoints.get(tenant, webhook_id_of_call(call_id))
        return None if row is None else self._of_batch(row).secret

    async def find_for_batch(self, order: BatchOrder) -> BatchWebhook | None:
        """Return the webhook endpoint that `create_for_batch` has created for a batch; None if there is
        none.
        """
        row = await self._endpoints.get(order.tenant, webhook_id_of_batch(order.batch_id))
        return None if row is None else self._of_batch(row)

    async def check_url(self, url: str, param: str, tenant: str) -> None:
        """Check that this URL is allowed for webhooks. The IP addresses to which the host name resolves now
        must be allowed, too.

        Args:
            param: name of the URL's field, for error messages.

        Raises:
            ApiError: the URL is not allowed (400, with the reason), or the tenant has sent too many URLs that
                are not allowed (429).
        """
        try:
            await self._deps.webhook_urls.check(url, tenant)
        except ValueError as error:
            raise invalid_value(param, f"Invalid '{param}': {error}.") from None
        except TooManyUrls as error:
            limit, seconds = REFUSED_URLS_PER_MINUTE, error.seconds
            raise rate_limited(str(error), limit, seconds=seconds, window=60) from None

    async def get(self, tenant: str, id: str) -> WebhookEndpoint:
        row = await self._endpoints.get(tenant, id) if is_webhook_id(id) else None
        if row is None:
            raise webhook_not_found(id)
        return row

    async def change(self, row: WebhookEndpoint, changes: EndpointChanges) -> WebhookEndpoint:
        """Change fields of a webhook endpoint, such as whether it is enabled. Return its new row.

        Fields that are None in `changes` keep their values in the database, which may be newer than `row`.

        Raises:
            ApiError: the new URL is not allowed (400).
        """
        if changes.url is not None:
            await self.check_url(changes.url, "url", row.tenant)
        changed = await self._endpoints.change(
            row.tenant, row.id, changes, at=self._clock(), reason=DISABLED_BY_USER
        )
        if changed is None:
            raise webhook_not_found(row.id)
        return changed

    async def rotate(self, row: WebhookEndpoint, overlap_seconds: int) -> EndpointWithSecret:
        """Replace the secret of a webhook endpoint. Return the endpoint's new row and the new secret.

        For `overlap_seconds` from now, events are signed with both the old and the new secret.
        """
        secret = new_secret(secrets.token_bytes(_SECRET_BYTES))
        until = self._clock() + timedelta(seconds=overlap_seconds)
        stored = self._secrets.encrypt(secret, row.id)
        changed = await self._endpoints.rotate(row.tenant, row.id, stored, until)
        if changed is None:
            raise webhook_not_found(row.id)
        return EndpointWithSecret(changed, secret)

    async def test(self, row: WebhookEndpoint, event: EventType | None) -> ListedDelivery:
        """Send a test event to the endpoint. Return the delivery: a record of the event and the attempts to
        send it.

        The event is about a batch that does not exist.

        Args:
            event: type of the event; None for the first of the endpoint's event types.

        Raises:
            ApiError: the endpoint is disabled (409), or the tenant has requested too many tests and replays
                (429).
        """
        _check_enabled(row)
        self._limit_requested(row.tenant)
        now = self._clock()
        delivery = WebhookDelivery(
            tenant=row.tenant,
            id=new_delivery_id(),
            endpoint_id=row.id,
            batch_id=TEST_BATCH,
            event_id=new_event_id(),
            type=event or row.events[0],
            occurred_at=now,
            created_at=now,
        )
        await self._deliveries.insert_test(delivery)
        return ListedDelivery(delivery, [])

    async def delivery(self, row: WebhookEndpoint, delivery_id: str) -> ListedDelivery:
        """Return a delivery: one event for an endpoint, with all attempts to send it.

        Raises:
            ApiError: the endpoint has no such delivery (404).
        """
        found = None
        if is_delivery_id(delivery_id):
            found = await self._deliveries.one(row.tenant, row.id, delivery_id)
        if found is None:
            raise delivery_not_found(delivery_id)
        return found

    async def replay(self, row: WebhookEndpoint, delivery_id: str) -> ListedDelivery:
        """Send the event of a delivery again, with the same `webhook-id`. Return the delivery (the record of
        the event and the attempts to send it).

        Only these deliveries can be replayed (sent again):

        - A delivery that has ended.
        - A pending delivery whose workflow was started more than 73 h ago. Such a workflow no longer runs.
          For example, an operator has terminated it.

        Any other pending delivery needs no replay, because its own workflow sends the event again.

        Raises:
            ApiError: the endpoint has no such delivery (404), the delivery cannot be replayed or the endpoint
                is disabled (409), or the tenant has requested too many tests and replays (429).
        """
        await self.delivery(row, delivery_id)
        _check_enabled(row)
        self._limit_requested(row.tenant)
        lost_before = self._clock() - LOST_AFTER
        if not await self._deliveries.replay(row.tenant, delivery_id, lost_before=lost_before):
            raise conflict("Cannot replay a delivery that is pending: it is attempted again by itself.")
        return await self.delivery(row, delivery_id)

    def _limit_requested(self, tenant: str) -> None:
        if seconds := self._requested.wait_seconds(tenant):
            message = (
                f"Too many test events and replays: at most {REQUESTED_PER_MINUTE} per minute are allowed. "
                f"Try again in {seconds} s."
            )
            raise rate_limited(message, REQUESTED_PER_MINUTE, seconds=seconds, window=60)
        self._requested.acquire(tenant)

    def _of_batch(self, row: WebhookEndpoint) -> BatchWebhook:
        try:
            secret = self._secrets.decrypt(row.secret, row.id)
        except StoredSecretUnreadable as error:
            logger.warning("webhook secret not shown", extra={"endpoint_id": row.id, "error": str(error)})
            secret = None
        events = [event.value for event in row.events]
        return BatchWebhook(id=row.id, url=row.url, events=events, details=row.details, secret=secret)

    def _build(self, spec: WebhookSpec, tenant: str, id: str, batch_id: str) -> EndpointWithSecret:
        secret = spec.secret or new_secret(secrets.token_bytes(_SECRET_BYTES))
        row = WebhookEndpoint(
            tenant=tenant,
            id=id,
            batch_id=batch_id,
            url=spec.url,
            events=spec.events,
            description=spec.description,
            details=spec.details,
            secret=self._secrets.encrypt(secret, id),
            created_at=self._clock(),
        )
        return EndpointWithSecret(row, secret)


def _check_enabled(row: WebhookEndpoint) -> None:
    if row.disabled_at is not None:
        raise conflict(f"The webhook is disabled: {row.disabled_reason} Set 'enabled' to true first.")
