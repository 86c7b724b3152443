"""The table of webhook endpoints, in PostgreSQL and in memory."""

import asyncio

import pytest

from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.database.database import Database
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.webhooks.webhook_endpoints import EndpointChanges
from tests.integration.database.rows import START, after
from tests.integration.database.webhook_rows import (
    a_delivery,
    an_endpoint,
    attempt,
    attempted,
    change,
    create,
    endpoint_of,
)


async def test_an_endpoint_is_stored_changed_and_deleted(any_database: Database) -> None:
    table = any_database.webhook_endpoints
    await create(any_database, an_endpoint(description="mine", details=True))
    row = await endpoint_of(any_database)
    assert row == an_endpoint(description="mine", details=True)
    changes = EndpointChanges(url="https://b.example/", events=[EventType.BATCH_FAILED], details=False)
    changed = await change(any_database, changes)
    update = {"url": "https://b.example/", "events": [EventType.BATCH_FAILED], "details": False}
    assert changed == row.model_copy(update=update) == await endpoint_of(any_database)
    assert await table.delete("t", "webhook_1")
    assert not await table.delete("t", "webhook_1")
    assert await change(any_database, EndpointChanges(details=True)) is None
    assert await table.rotate("t", "webhook_1", b"x", START) is None


async def test_a_change_leaves_the_fields_that_it_does_not_name(any_database: Database) -> None:
    """Concurrent changes of other fields are kept, and so is the time at which the endpoint was first
    disabled.
    """
    await create(any_database, an_endpoint())
    await asyncio.gather(
        change(any_database, EndpointChanges(description="mine")),
        change(any_database, EndpointChanges(details=True)),
        change(any_database, EndpointChanges(enabled=False)),
    )
    disabled = an_endpoint(description="mine", details=True, disabled_at=after(50), disabled_reason="off")
    assert await endpoint_of(any_database) == disabled
    url = "https://b.example/"
    assert await change(any_database, EndpointChanges(url=url)) == disabled.model_copy(update={"url": url})
    await change(any_database, EndpointChanges(enabled=False), at=60)
    assert await endpoint_of(any_database) == disabled.model_copy(update={"url": url})


async def test_enabling_an_enabled_endpoint_keeps_its_failures(any_database: Database) -> None:
    await attempted(any_database, await a_delivery(any_database), attempt(20))
    row = await change(any_database, EndpointChanges(enabled=True))
    assert row is not None
    assert (row.failing_since, row.disabled_at) == (after(20), None)


async def test_tenants_have_their_own_endpoints(any_database: Database) -> None:
    await create(any_database, an_endpoint())
    table = any_database.webhook_endpoints
    assert await table.get("other", "webhook_1") is None
    assert not await table.delete("other", "webhook_1")
    assert await table.page("other", limit=10, after=None) == ([], False)
    with pytest.raises(UnknownCursor):
        await table.page("other", limit=10, after="webhook_1")


async def test_endpoints_are_listed_in_pages_newest_first(any_database: Database) -> None:
    rows = [an_endpoint(f"webhook_{number}", created_at=after(number)) for number in range(3)]
    await create(any_database, *rows, an_endpoint("webhook_of_batch", batch_id="batch_1"))
    table = any_database.webhook_endpoints
    assert await table.page("t", limit=2, after=None) == ([rows[2], rows[1]], True)
    assert await table.page("t", limit=2, after="webhook_1") == ([rows[0]], False)
    found, _ = await table.page("t", limit=2, after=None, batch_id="batch_1")
    assert [row.id for row in found] == ["webhook_of_batch"]


async def test_concurrent_creations_do_not_exceed_the_limit(any_database: Database) -> None:
    table = any_database.webhook_endpoints
    rows = [an_endpoint(f"webhook_{number}") for number in range(8)]
    made = await asyncio.gather(*(table.insert(row, limit=3) for row in rows))
    assert sum(made) == 3
    assert await table.insert(an_endpoint("webhook_other", tenant="other"), limit=3)
    await create(any_database, an_endpoint("webhook_of_batch", batch_id="batch_1"))


async def test_a_repeated_endpoint_of_a_batch_stays_the_first_one(any_database: Database) -> None:
    table = any_database.webhook_endpoints
    first = an_endpoint(batch_id="batch_1", secret=b"first")
    assert await table.insert_for_batch(first) == first
    assert await table.insert_for_batch(an_endpoint(batch_id="batch_1", secret=b"second")) == first


async def test_a_replaced_secret_signs_until_its_time_is_over(any_database: Database) -> None:
    await create(any_database, an_endpoint(secret=b"old"))
    row = await any_database.webhook_endpoints.rotate("t", "webhook_1", b"new", after(60))
    assert row is not None
    assert row == await endpoint_of(any_database)
    assert (row.secrets(after(59)), row.secrets(after(60))) == ([b"new", b"old"], [b"new"])
