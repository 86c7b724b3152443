"""Requests that create webhooks and read their deliveries."""

from datetime import UTC, datetime

from batchwright.contracts.api_objects.webhooks import (
    DeliveryObject,
    DeliveryPage,
    WebhookObject,
)
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome
from batchwright.rules.webhooks.signatures import new_secret
from tests.fakes.api import ApiFixture, error_of, read

URL = "http://127.0.0.1:9/hook"


WEBHOOKS = "/v1/x/webhooks"


SECRET = new_secret(b"s" * 32)
NOW = datetime.now(UTC)


OUTCOME = BatchOutcome(status=BatchStatus.COMPLETED, completed=1, failed=0, usage=Usage())


async def created(api: ApiFixture, **fields: object) -> WebhookObject:
    return read(await api.http.post(WEBHOOKS, json={"url": URL, **fields}), WebhookObject)


async def refused(
    api: ApiFixture, body: object, path: str = WEBHOOKS, method: str = "POST"
) -> tuple[str | None, str]:
    """Send a request that is not valid, and return the parameter and the message of the error."""
    answer = await api.http.request(method, path, json=body)
    assert answer.status_code == 400
    error = error_of(answer)
    return error.param, error.message


async def ended(api: ApiFixture) -> str:
    """Create a batch that has completed, and return its id."""
    batch = await api.create()
    models = [ModelCounts(model="llama", lines=1)]
    await api.database.batches.start("default", batch.id, total=1, models=models, at=NOW)
    await api.database.batch_ends.finish("default", batch.id, OUTCOME, NOW)
    return batch.id


async def deliveries(api: ApiFixture, id: str, **query: str) -> list[DeliveryObject]:
    return read(await api.http.get(f"{WEBHOOKS}/{id}/deliveries", params=query), DeliveryPage).data
