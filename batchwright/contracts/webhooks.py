"""Messages and activity of webhook deliveries."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "WebhookDeliveryWorkflow"


class DeliveryOrder(Message):
    """Order to deliver one event to one endpoint. URL and secret stay in the database."""

    tenant: str
    delivery_id: str
    endpoint_id: str


class AttemptRequest(Message):
    """Request for one attempt. If it `is_last` and fails, the delivery has failed."""

    order: DeliveryOrder
    is_last: bool = False


class AttemptResult(Message):
    """Result of one attempt. If it `is_final`, no other attempt follows. `outcome` is for people."""

    is_final: bool
    outcome: str


class DeliveryResult(Message):
    attempts: int
    outcome: str


class WebhookActivities:
    """Declaration of the activity, so that workflows can call it without importing its implementation.

    It is implemented in `activities/webhooks/activity.py`.
    """

    @activity.defn
    async def deliver_webhook(self, request: AttemptRequest) -> AttemptResult:
        """Send the event to its endpoint once, and record the attempt. A failed attempt is a result."""
        raise NotImplementedError
