"""The activity that makes one attempt to deliver a webhook, and records it."""

import logging
import time
from datetime import UTC, datetime

from temporalio import activity

from batchwright.activities.errors import translated
from batchwright.activities.webhooks.event_body import body_of
from batchwright.contracts.temporal_payloads.webhooks import AttemptRequest, AttemptResult, WebhookActivities
from batchwright.database.database import Database
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookAttempt, WebhookDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.webhooks.signatures import signed_headers
from batchwright.rules.webhooks.webhook_retries import RETRY_PERIOD
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.stored_secrets import StoredSecrets, StoredSecretUnreadable
from batchwright.webhooks.sender import SendResult, WebhookSender

_log = logging.getLogger(__name__)
_DISABLED = "The endpoint is disabled."


class WebhookDeliveries(WebhookActivities):
    def __init__(
        self, database: Database, sender: WebhookSender, secrets: StoredSecrets, metrics: Metrics
    ) -> None:
        self._database, self._deliveries = database, database.webhook_deliveries
        self._sender, self._secrets, self._metrics = sender, secrets, metrics
        for result in ("succeeded", "failed"):  # from zero, so that a rate sees the first attempt
            metrics.webhook_attempts.labels(result)

    @activity.defn
    async def deliver_webhook(self, request: AttemptRequest) -> AttemptResult:
        """Send a webhook to its endpoint once, and record the attempt.

        Return the attempt's result, even if it failed. If the worker crashes before the attempt is recorded,
        the attempt is repeated. The receiver then gets the event twice, with the same `webhook-id`.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        order = request.order
        async with translated():
            delivery = await self._deliveries.get(order.tenant, order.delivery_id)
            endpoint = await self._database.webhook_endpoints.get(order.tenant, order.endpoint_id)
            if delivery is None or endpoint is None:
                return AttemptResult(is_final=True, outcome="the endpoint was deleted")
            if delivery.status == "delivered":  # by an attempt whose worker crashed after it was recorded
                return AttemptResult(is_final=True, outcome="delivered")
            if endpoint.disabled_at is not None:
                await self._deliveries.give_up(order.tenant, delivery.id, _DISABLED)
                self._metrics.webhook_deliveries.labels("failed").inc()
                return AttemptResult(is_final=True, outcome="the endpoint is disabled")
            return await self._attempt(delivery, endpoint, is_last=request.is_last)

    async def _attempt(
        self, delivery: WebhookDelivery, endpoint: WebhookEndpoint, *, is_last: bool
    ) -> AttemptResult:
        body = delivery.body
        if body is None:
            body = await body_of(self._database, delivery, endpoint)
            body = await self._deliveries.keep_body(delivery.tenant, delivery.id, body)
        at, started = datetime.now(UTC), time.monotonic()
        result = await self._send(delivery, endpoint, body, at)
        seconds = time.monotonic() - started
        attempt = WebhookAttempt(
            at=at, seconds=round(seconds, 4), http_status=result.status, reason=result.reason
        )
        disabled = await self._deliveries.record_attempt(
            delivery, attempt, is_last=is_last, disable_after=RETRY_PERIOD
        )
        self._metrics.webhook_attempts.labels("failed" if result.reason else "succeeded").inc()
        self._metrics.webhook_attempt_seconds.observe(seconds)
        if not result.reason or is_last:
            self._metrics.webhook_deliveries.labels("failed" if result.reason else "delivered").inc()
        if disabled:
            self._metrics.webhook_endpoints_disabled.inc()
            _log.warning("webhook endpoint disabled", extra={"endpoint_id": endpoint.id})
        return AttemptResult(is_final=not result.reason or is_last, outcome=result.reason or "delivered")

    async def _send(
        self, delivery: WebhookDelivery, endpoint: WebhookEndpoint, body: bytes, at: datetime
    ) -> SendResult:
        try:
            secrets = [self._secrets.decrypt(stored, endpoint.id) for stored in endpoint.secrets(at)]
        except StoredSecretUnreadable as error:
            _log.error("webhook not signed", extra={"endpoint_id": endpoint.id, "error": str(error)})
            return SendResult(None, "The operator's worker cannot read the endpoint's secret; rotate it.")
        headers = signed_headers(secrets, delivery.id, int(at.timestamp()), body)
        return await self._sender.send(endpoint.url, headers, body)
