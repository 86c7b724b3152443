"""Batches whose row is missing, because the database did not respond while they were created."""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from batchwright.api.running_batches import UNKNOWN_PER_MINUTE
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BatchRow
from batchwright.rules.ids import batch_id_of_run
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.tables.batches.batches import MemoryBatches

NOW = datetime.now(UTC)


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.fixture
async def created(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> BatchObject:
    """Create a batch whose workflow runs, but has not inserted the row of the batch."""

    with rows_not_inserted(monkeypatch):
        batch = await api.create()
    api.temporal.open.add(batch.id)
    assert not api.database.rows.batches
    return batch


@contextmanager
def rows_not_inserted(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    async def unavailable(table: MemoryBatches, order: BatchOrder) -> BatchRow:
        raise DatabaseUnavailable("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBatches, "upsert", unavailable)
        yield


async def test_a_batch_without_a_row_is_found(api: ApiFixture, created: BatchObject) -> None:
    found = read(await api.http.get(f"/v1/batches/{created.id}"), BatchObject)
    assert (found.id, found.status, found.created_at) == (created.id, "validating", created.created_at)
    assert [batch.order.batch_id for batch in api.database.rows.batches.values()] == [created.id]


async def test_a_batch_without_a_row_can_be_cancelled(api: ApiFixture, created: BatchObject) -> None:
    cancelled = read(await api.http.post(f"/v1/batches/{created.id}/cancel"), BatchObject)
    assert cancelled.status == "cancelling"
    assert api.temporal.signals == [(created.id, "cancel")]


async def test_a_cancel_of_a_batch_without_a_row_is_in_the_audit_log(
    created: BatchObject, api: ApiFixture
) -> None:
    await api.http.post(f"/v1/batches/{created.id}/cancel")
    [recorded] = api.database.rows.audit_log.values()
    assert (recorded.entry.target.id, recorded.entry.target.tenant) == (created.id, "default")


async def test_a_message_batch_without_a_row_is_found(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = api.anthropic.messages.batches
    message = {"model": "llama", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    with rows_not_inserted(monkeypatch):
        created = await batches.create(requests=[{"custom_id": "a", "params": message}])  # pyright: ignore[reportArgumentType] - a plain dict
    api.temporal.open.add(created.id.removeprefix("msg"))
    assert (await batches.retrieve(created.id)).processing_status == "in_progress"
    assert (await batches.cancel(created.id)).processing_status == "canceling"


async def test_operators_find_a_batch_without_a_row(created: BatchObject, api: ApiFixture) -> None:
    found = await api.http.get(f"/admin/batches/{created.id}")
    assert (found.status_code, found.json()["tenant"]) == (200, "default")


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


async def test_a_cancel_by_an_operator_is_recorded_although_temporal_does_not_respond(
    api: ApiFixture, created: BatchObject
) -> None:
    api.temporal.failing = TemporalUnavailable("no response")
    answer = await api.http.post(f"/admin/batches/{created.id}/cancel")
    [recorded] = api.database.rows.audit_log.values()
    assert (answer.status_code, recorded.entry.target.id) == (503, created.id)


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_batch_that_ends_before_it_is_signalled_gives_no_server_error(
    api: ApiFixture, verb: str
) -> None:
    batch = await api.create()
    count = MemoryBatches.claim_pause_or_resume

    async def count_before_the_end(table: MemoryBatches, tenant: str, batch_id: str, most: int) -> int | None:
        counted = await count(table, tenant, batch_id, most)
        await api.database.batch_ends.fail_validation(tenant, batch_id, errors=[], total=1, at=NOW)
        del api.temporal.orders[batch_id]
        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBatches, "claim_pause_or_resume", count_before_the_end)
        answer = await api.http.post(f"/v1/batches/{batch.id}/x/{verb}")
    assert (answer.status_code, f"Cannot {verb} a batch with status 'failed'" in answer.text) == (409, True)


async def test_batches_without_a_row_do_not_count_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api(max_live_batches=0) as api:
        with rows_not_inserted(monkeypatch):
            batches = [(await api.create()).id for _ in range(UNKNOWN_PER_MINUTE + 5)]
        api.temporal.open.update(batches)
        answers = [await api.http.get(f"/v1/batches/{batch}") for batch in batches]
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize(
    "batch_id",
    [
        "batch_01890000000070008000000000000000",  # of July 2023: longer ago than any batch may run
        batch_id_of_run("schedule_1"),
    ],
)
async def test_an_id_that_no_running_batch_can_have_is_unknown_even_while_temporal_does_not_respond(
    api: ApiFixture, batch_id: str
) -> None:
    api.temporal.failing = TemporalUnavailable("no response")
    assert (await api.http.get(f"/v1/batches/{batch_id}")).status_code == 404
    assert api.temporal.lookups == []
