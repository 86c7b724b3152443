"""Batches whose row is missing, because the database did not respond while they were created."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BatchRow
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.tables.batches.batches import MemoryBatches


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.fixture
async def created(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> BatchObject:
    """Create a batch whose workflow runs, but has not inserted the row of the batch."""

    async def unavailable(table: MemoryBatches, order: BatchOrder) -> BatchRow:
        raise DatabaseUnavailable("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBatches, "upsert", unavailable)
        batch = await api.create()
    api.temporal.open.add(batch.id)
    assert not api.database.rows.batches
    return batch


async def test_a_batch_without_a_row_is_found(api: ApiFixture, created: BatchObject) -> None:
    found = read(await api.http.get(f"/v1/batches/{created.id}"), BatchObject)
    assert (found.id, found.status, found.created_at) == (created.id, "validating", created.created_at)
    assert [batch.order.batch_id for batch in api.database.rows.batches.values()] == [created.id]


async def test_a_batch_without_a_row_can_be_cancelled(api: ApiFixture, created: BatchObject) -> None:
    cancelled = read(await api.http.post(f"/v1/batches/{created.id}/cancel"), BatchObject)
    assert cancelled.status == "cancelling"
    assert api.temporal.signals == [(created.id, "cancel")]


async def test_a_batch_without_a_row_is_not_found_by_another_tenant(
    api: ApiFixture, created: BatchObject
) -> None:
    for tenant in ("blue", "red"):
        answer = await api.http.get(f"/v1/batches/{created.id}", headers={"X-Tenant": tenant})
        assert answer.status_code == 404
    assert not api.database.rows.batches


async def test_a_batch_whose_workflow_has_ended_gets_no_row(api: ApiFixture, created: BatchObject) -> None:
    api.temporal.open.clear()
    assert (await api.http.get(f"/v1/batches/{created.id}")).status_code == 404
    assert not api.database.rows.batches


async def test_a_batch_that_may_exist_is_no_404_while_temporal_does_not_respond(
    api: ApiFixture, created: BatchObject
) -> None:
    api.temporal.failing = TemporalUnavailable("no response")
    answer = await api.http.get(f"/v1/batches/{created.id}")
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
