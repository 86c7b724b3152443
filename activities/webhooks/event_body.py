"""Build the body of a webhook: an event about a batch, or a job (a single request) with its result."""

from batchwright.contracts.api_objects.openai import RequestCounts, UsageObject
from batchwright.contracts.api_objects.webhook_events import TEST_BATCH, BatchEvent, EventDetails, batch_event
from batchwright.database.database import Database
from batchwright.database.records import BatchRow
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.calls.call_results import job_body
from batchwright.rules.ids import is_call_id
from batchwright.rules.token_costs import batch_cost

_MAX_RESULT_BYTES = 1024 * 1024  # maximum size of a job's result in its callback


async def body_of(database: Database, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> bytes:
    """Return the body of the request that delivers a webhook to an endpoint.

    Usually, the body is an event. If the endpoint is the callback URL of a single job (a request that a
    client sends without a batch), the body is this job with its result.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """
    if endpoint.batch_id and is_call_id(endpoint.batch_id, "job_"):
        call = await database.calls.get(delivery.tenant, endpoint.batch_id)
        if call is not None:
            return job_body(call, _MAX_RESULT_BYTES)
    return (await event_of(database, delivery, endpoint)).body()


async def event_of(database: Database, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> BatchEvent:
    """Return the event that a webhook reports.

    If the client has requested details for this endpoint, the event also describes the batch as it is now.

    Raises:
        DatabaseUnavailable: the database does not answer.
    """
    details = None
    if endpoint.details:
        row = await database.batches.get(delivery.tenant, delivery.batch_id)
        if delivery.batch_id == TEST_BATCH:
            details = EventDetails(test=True)
        elif row is not None:
            details = _details_of(row)
    return batch_event(delivery.event_id, delivery.batch_id, delivery.type, delivery.occurred_at, details)


def _details_of(row: BatchRow) -> EventDetails:
    order = row.order
    return EventDetails(
        status=row.status,
        completion_window=order.completion_window,
        created_at=int(order.created_at.timestamp()),
        expires_at=int(order.deadline.timestamp()),
        request_counts=RequestCounts(total=row.total, completed=row.completed, failed=row.failed),
        usage=UsageObject.of(row.usage),
        cost=batch_cost(row.model_usage, row.prices, final=row.status.is_terminal and not row.files_pending),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        metadata=order.metadata,
        errors_summary=row.errors_summary,
    )
