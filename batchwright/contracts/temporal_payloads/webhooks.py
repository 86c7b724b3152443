"""Activity that sends a webhook, with the arguments and results of this activity and of its workflow."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "WebhookDeliveryWorkflow"


class DeliveryOrder(Message):
    """The argument of the workflow that delivers one event to one webhook endpoint.

    The URL and the secret are not included: the activity reads them from the database.

    Attributes:
        is_test: True for a test event. A test event is retried for 5 minutes, all other events for 72 hours.
        fairness_key: name of a group of deliveries. Temporal divides the workers equally between the groups,
            so that a group with many deliveries does not delay other groups. If the name is empty, the
            endpoint's id is used as the name.
    """

    tenant: str
    delivery_id: str
    endpoint_id: str
    is_test: bool = False
    fairness_key: str = ""


class AttemptRequest(Message):
    """A request for one attempt to deliver an event to its webhook endpoint.

    If `is_last` is True and the attempt fails, the whole delivery has failed.
    """

    order: DeliveryOrder
    is_last: bool = False


class AttemptResult(Message):
    """The result of one attempt to deliver an event to its webhook endpoint.

    `is_final` is True if no other attempt follows. `outcome` is a sentence for people about what happened.
    """

    is_final: bool
    outcome: str


class DeliveryResult(Message):
    attempts: int
    outcome: str


class WebhookActivities:
    """The declaration of the activity `deliver_webhook`. Workflows call it without importing its code.

    The implementation is in `activities/webhooks/activity.py`.
    """

    @activity.defn
    async def deliver_webhook(self, request: AttemptRequest) -> AttemptResult:
        """Send an event to its endpoint once, and record the attempt in the database.

        If the endpoint does not accept the event, the result has the reason, and no exception is raised.
        """
        raise NotImplementedError
