"""Objects of `/v1/x/webhooks`: endpoints that receive events, and deliveries to them."""

from typing import Literal

from batchwright.contracts.api_objects.openai import ApiObject
from batchwright.contracts.api_objects.pages import ListPage
from batchwright.contracts.api_objects.webhook_events import EventType

DeliveryStatus = Literal["pending", "delivered", "failed"]


class WebhookObject(ApiObject):
    """A webhook endpoint: a URL that receives events about batches.

    - `secret` is null, except in the response that creates the endpoint, and in the response that replaces
      its secret.
    - `batch_id` is null if the endpoint receives the events of all batches.
    - If `details` is true, events contain `data.x_batchwright`.
    - After the secret was replaced, requests are signed with both secrets until `previous_secret_expires_at`.
    - `failing_since` is the time of the first failed attempt since the last success.
    - `disabled_reason` is null while the endpoint is enabled.
    """

    id: str
    object: Literal["webhook"] = "webhook"
    url: str
    events: list[EventType]
    description: str
    details: bool
    batch_id: str | None
    enabled: bool
    disabled_at: int | None
    disabled_reason: str | None
    failing_since: int | None
    created_at: int
    previous_secret_expires_at: int | None
    secret: str | None = None


class WebhookPage(ListPage[WebhookObject], ApiObject):
    pass


class DeletedWebhook(ApiObject):
    id: str
    object: Literal["webhook"] = "webhook"
    deleted: bool = True


class AttemptObject(ApiObject):
    """One attempt to send an event to a webhook endpoint.

    `status` is the status of the HTTP response; null if there was no response. `reason` says why the attempt
    failed; null if the attempt succeeded.
    """

    number: int
    at: float
    latency_seconds: float
    status: int | None
    reason: str | None


class DeliveryObject(ApiObject):
    """An event and its delivery to one webhook endpoint.

    `id` is the header `webhook-id` of every attempt. `reason` says why the delivery ended without further
    attempts, for example because the endpoint was disabled. `attempts` has the latest attempts, oldest first.
    `next_attempt_at` is null before the first attempt, after the last one, and after a replay.
    """

    id: str
    object: Literal["webhook.delivery"] = "webhook.delivery"
    webhook_id: str
    event_id: str
    type: EventType
    batch_id: str
    occurred_at: int
    created_at: int
    status: DeliveryStatus
    reason: str | None
    attempt_count: int
    next_attempt_at: int | None
    attempts: list[AttemptObject]


class DeliveryPage(ListPage[DeliveryObject], ApiObject):
    pass
