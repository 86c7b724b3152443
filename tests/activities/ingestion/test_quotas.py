"""Ingestion with quotas and permissions.

A batch that exceeds a quota fails. A line whose model the tenant may not use fails.
"""

import json
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.contracts.errors import Failure
from batchwright.contracts.terms import BatchStatus, Endpoint, OverQuota
from batchwright.rules.results.segment_format import SegmentRecord
from batchwright.rules.tenants.quotas import EnqueuedWork, QuotaExcess, QuotaLimits
from batchwright.storage.base import StorageUnavailable
from tests.activities.ingestion.fresh_batch import BATCH_ID, INPUT_KEY, TENANT, FreshBatch, a_batch, a_line
from tests.integration.database.rows import START, an_order


def error_of(record: SegmentRecord) -> tuple[str, str, str]:
    line = json.loads(record.payload)
    return line["custom_id"], line["error"]["code"], line["error"]["message"]


async def allow(batch: FreshBatch, *models: str) -> None:
    await batch.database.quotas.change(TENANT, {"models": frozenset(models)}, START)


@pytest.mark.parametrize("setting", ["max_enqueued_lines", "max_enqueued_tokens"])
async def test_a_batch_over_its_tenants_quota_fails_and_writes_nothing(setting: str) -> None:
    batch = await a_batch(a_line("1"), a_line("2"), **{setting: 1})
    assert (await batch.ingest()).failed
    row = await batch.row()
    assert (row.status, row.total, batch.written()) == (BatchStatus.FAILED, 2, [])
    assert [(error.code, error.param, error.line) for error in row.errors] == [
        ("token_limit_exceeded", None, None)
    ]
    name = setting.removeprefix("max_")
    counted = batch.metrics.registry.get_sample_value
    assert counted("batchwright_quota_refusals_total", {"tenant": TENANT, "quota": name}) == 1
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 0


async def test_a_batch_over_a_quota_waits_if_the_tenants_batches_do_and_starts_when_there_is_room() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=3)
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    await enqueue(batch, "batch_running", lines=2)
    with pytest.raises(ApplicationError) as waiting:
        await batch.ingest()
    assert (waiting.value.type, waiting.value.category) == (
        Failure.OVER_QUOTA,
        ApplicationErrorCategory.BENIGN,
    )
    assert waiting.value.message == "its tenant may have 3 lines enqueued: 2 are, and this batch has 2"
    assert ((await batch.row()).status, batch.written()) == (BatchStatus.VALIDATING, [])
    await batch.database.batch_ends.end_without_files(TENANT, "batch_running", BatchStatus.FAILED, [], START)
    assert not (await batch.ingest()).failed
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 2


async def test_a_waiting_batch_does_not_read_its_input_again_until_it_is_its_turn() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=3)
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    await enqueue(batch, "batch_running", lines=2)
    with pytest.raises(ApplicationError):
        await batch.ingest()
    del batch.storage.objects[INPUT_KEY]
    with pytest.raises(ApplicationError) as waiting:
        await batch.ingest()
    assert waiting.value.type == Failure.OVER_QUOTA


async def test_a_batch_that_reserved_its_lines_before_an_earlier_one_began_to_wait_starts() -> None:
    """The earlier batch waits for lines of the quota that the later batch has reserved. So the later batch
    must not wait for the earlier one.
    """
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=3)
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    await enqueue(batch, "batch_running", lines=2)
    with pytest.raises(ApplicationError) as waiting:
        await batch.ingest()
    assert waiting.value.type == Failure.OVER_QUOTA
    await batch.database.batch_ends.end_without_files(TENANT, "batch_running", BatchStatus.FAILED, [], START)
    batch.storage.failing = StorageUnavailable("no answer")
    with pytest.raises(ApplicationError) as unreadable:
        await batch.ingest()
    assert unreadable.value.type == Failure.STORAGE_UNAVAILABLE
    batch.storage.failing = None
    assert await wait_for(batch, "batch_early", lines=2, created=-1) is not None
    assert not (await batch.ingest()).failed


async def test_later_batches_get_the_rest_of_the_quota_while_the_input_of_the_first_cannot_be_read() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=3)
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    await enqueue(batch, "batch_running", lines=2)
    with pytest.raises(ApplicationError):
        await batch.ingest()
    assert await wait_for(batch, "batch_late", lines=1, created=1) is not None
    await batch.database.batch_ends.end_without_files(TENANT, "batch_running", BatchStatus.FAILED, [], START)
    batch.storage.failing = StorageUnavailable("no answer")
    with pytest.raises(ApplicationError):
        await batch.ingest()
    assert await wait_for(batch, "batch_late", lines=1, created=1) is None


async def wait_for(batch: FreshBatch, id: str, lines: int, created: int) -> QuotaExcess | None:
    """Let another batch reserve `lines` lines of the quota of enqueued lines.

    The other batch was created `created` hours after this one. A negative number means that it was created
    before. Return by how much it exceeds the quota if it must wait, or None if it has reserved its lines.
    """
    created_at = batch.order.created_at + timedelta(hours=created)
    order = an_order(id, TENANT, created_at=created_at, deadline=batch.order.deadline)
    await batch.database.batches.upsert(order)
    limits = QuotaLimits(enqueued_lines=3)
    return await batch.database.quotas.reserve(TENANT, id, EnqueuedWork(lines, lines), limits, waits=True)


async def test_a_batch_that_alone_exceeds_the_quota_does_not_wait() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=1)
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    assert (await batch.ingest()).failed


async def test_a_waiting_batch_whose_window_is_over_is_planned_without_the_quota() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=3, window=timedelta(seconds=-60))
    await batch.database.quotas.change(TENANT, {"over_quota": OverQuota.WAIT}, START)
    await enqueue(batch, "batch_running", lines=2)
    assert (await batch.ingest()).deadline_passed


async def enqueue(batch: FreshBatch, id: str, lines: int) -> None:
    """Let another batch of the tenant enqueue lines."""
    await batch.database.batches.upsert(an_order(id, TENANT))
    await batch.database.quotas.reserve(TENANT, id, EnqueuedWork(lines, lines), QuotaLimits())


async def test_a_quota_of_the_tenant_overrides_the_setting() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=1)
    await batch.database.quotas.change(TENANT, {"enqueued_lines": 2}, START)
    assert not (await batch.ingest()).failed
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 2


async def test_only_lines_that_workers_will_send_are_enqueued() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="nobody"), max_enqueued_lines=1)
    assert not (await batch.ingest()).failed
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 1


async def test_an_attempt_after_a_kill_reserves_the_same_again_and_no_more() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=2)
    first = await batch.ingest()
    again = await batch.ingest()
    assert (first.failed, again.failed, again.total) == (False, False, 2)
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 2


async def test_batches_of_another_tenant_do_not_use_the_quota() -> None:
    batch = await a_batch(a_line("1"), max_enqueued_lines=1)
    await batch.database.batches.upsert(an_order("batch_other", "other"))
    await batch.database.quotas.change("other", {"enqueued_lines": 5}, START)
    assert not (await batch.ingest()).failed


async def test_lines_of_models_that_the_tenant_may_not_use_are_rejected_one_by_one() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="b"), a_line("3", model="nobody"))
    await allow(batch, "a")
    result = await batch.ingest()
    assert [share.model for share in result.models] == ["a"]
    assert (result.total, result.unserved) == (3, 2)
    assert [error_of(record) for record in batch.unserved(result)] == [
        ("2", "policy_rejected", "You may not use the model 'b'."),
        ("3", "policy_rejected", "You may not use the model 'nobody'."),
    ]
    counts = {count.model: count.failed for count in (await batch.row()).models}
    assert counts == {"a": 0, "b": 1, "nobody": 1}


async def test_a_model_that_is_allowed_and_not_served_is_not_found() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="nobody"))
    await allow(batch, "a", "nobody")
    [record] = batch.unserved(await batch.ingest())
    assert error_of(record)[1] == "model_not_found"


async def test_the_default_model_needs_permission_too() -> None:
    batch = await a_batch(a_line("1", model=None), endpoint=Endpoint.RESPONSES, default_model="b")
    await allow(batch, "a")
    [record] = batch.unserved(await batch.ingest())
    assert error_of(record)[:2] == ("1", "policy_rejected")


async def test_with_strict_models_a_forbidden_model_fails_the_batch_like_an_unknown_one() -> None:
    batch = await a_batch(a_line("1", model="b"), a_line("2", model="nobody"), strict_models=True)
    await allow(batch, "a")
    assert (await batch.ingest()).failed
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert [(error.code, error.param, error.line) for error in row.errors] == [
        ("model_not_found", "body.model", 1),
        ("model_not_found", "body.model", 2),
    ]
