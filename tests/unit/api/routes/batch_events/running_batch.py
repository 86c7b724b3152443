"""A batch in progress, and a client that listens to its events."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import (
    ErrorCount,
    ErrorExample,
    ModelCounts,
)
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome, SliceProgress
from tests.fakes.api import ApiFixture
from tests.fakes.event_stream import EventStreamClient, listening

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def refusals(api: ApiFixture) -> float:
    """Return how many requests were refused because of a wrong key."""
    name = "batchwright_api_refusals_total"
    return api.metrics.registry.get_sample_value(name, {"reason": "wrong_key"}) or 0


def listen(
    api: ApiFixture, batch: BatchObject, **headers: str
) -> AbstractAsyncContextManager[EventStreamClient]:
    return listening(api.app, f"/v1/batches/{batch.id}/x/events", **headers)


async def begun(api: ApiFixture, tenant: str = "default") -> BatchObject:
    """Create a batch in progress with nine lines, and return it."""
    batch = await api.create(tenant)
    models = [ModelCounts(model="llama", lines=9)]
    await api.database.batches.start(tenant, batch.id, total=9, models=models, at=START)
    return batch


async def settle(api: ApiFixture, batch: BatchObject, completed: int, failed: int = 0) -> None:
    """Report settled lines of the batch as a worker does. Then let the API read the batch once."""
    example = ErrorExample(custom_id="c", message="why")
    errors = [ErrorCount(code="http_400", count=failed, example=example)] if failed else []
    progress = SliceProgress(
        tenant="default",
        batch_id=batch.id,
        model="llama",
        number=0,
        generation=0,
        attempt=1,
        completed=completed,
        failed=failed,
        errors=errors,
    )
    await api.database.progress.record([progress])
    await api.events.poll()


async def end(api: ApiFixture, batch: BatchObject) -> None:
    """End the batch. Then let the API read it once."""
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=9, failed=0, usage=Usage())
    await api.database.batch_ends.finish("default", batch.id, outcome, START)
    await api.events.poll()


def fields(event: bytes) -> dict[str, str]:
    """Return the fields of an encoded event."""
    assert event.endswith(b"\n\n")
    lines = event.decode().removesuffix("\n\n").split("\n")
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}


def batch_in(event: bytes) -> BatchObject:
    return BatchObject.model_validate_json(fields(event)["data"])
