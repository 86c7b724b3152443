"""Start a workflow for each recorded webhook delivery and for each replay.

Workers with the role `control` run this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from temporalio.service import RPCError

from batchwright.contracts.api_objects.webhook_events import TEST_BATCH
from batchwright.contracts.temporal_payloads.webhooks import DeliveryOrder
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.webhooks.webhook_deliveries import UnstartedDelivery, WebhookDeliveriesTable
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
POLL_SECONDS = 1.0
_PAGE = 200
_PARALLEL_STARTS = 10

StartDelivery = Callable[[DeliveryOrder, int], Awaitable[None]]


class WebhookDispatcher:
    """The dispatcher that starts a workflow for each webhook delivery in the database, and for each replay.

    A replay is a request to send a webhook again. A delivery is marked as started only after Temporal has
    confirmed the start. If the process is killed before that, the start is repeated. Several control workers
    may start deliveries at the same time.

    Args:
        start: function that starts the workflow of a delivery. The second argument is the number of replays
            of the delivery. A repeated call with the same arguments has no effect. The function raises
            RPCError if Temporal does not respond.
    """

    def __init__(self, deliveries: WebhookDeliveriesTable, start: StartDelivery, metrics: Metrics) -> None:
        self._deliveries, self._start, self._metrics = deliveries, start, metrics

    async def run(self, *, every_seconds: float = POLL_SECONDS) -> None:
        """Start workflows of deliveries until cancelled.

        While the database or Temporal is unavailable, deliveries wait in the database.
        """
        outages = OutageLog(logger, "webhook deliveries wait to be started")
        while True:
            more = False
            with outages.suppress(DatabaseUnavailable, RPCError):
                more = await self.dispatch()
            if not more:
                await asyncio.sleep(every_seconds)

    async def dispatch(self) -> bool:
        """Start the workflows of the oldest unstarted deliveries. Return True if there may be more.

        If one delivery cannot be started, the others are started anyway.

        Raises:
            DatabaseUnavailable, RPCError: the database or Temporal does not respond, or a delivery was not
                started. If several deliveries were not started, the error of the oldest delivery is raised.
        """
        found = await self._deliveries.unstarted(_PAGE)
        age = (datetime.now(UTC) - found[0].created_at).total_seconds() if found else 0.0
        self._metrics.webhook_backlog_seconds.set(max(age, 0.0))
        failures: list[BaseException] = []
        for first in range(0, len(found), _PARALLEL_STARTS):
            part = found[first : first + _PARALLEL_STARTS]
            starts = (self._start_one(delivery) for delivery in part)
            results = await asyncio.gather(*starts, return_exceptions=True)
            failures += [result for result in results if result is not None]
        if failures:
            raise failures[0]
        return len(found) == _PAGE

    async def _start_one(self, delivery: UnstartedDelivery) -> None:
        order = DeliveryOrder(
            tenant=delivery.tenant,
            delivery_id=delivery.id,
            endpoint_id=delivery.endpoint_id,
            is_test=delivery.batch_id == TEST_BATCH,
            # Quotas limit only the endpoints for all batches. One tenant's endpoints of single batches and
            # calls take turns as one, so that any number of them delays no other tenant.
            fairness_key=delivery.tenant if delivery.is_of_one else "",
        )
        await self._start(order, delivery.replays)
        await self._deliveries.record_start(delivery)
