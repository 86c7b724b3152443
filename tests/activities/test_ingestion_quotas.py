"""Ingestion with quotas and permissions: over a quota the batch fails, not allowed the line does."""

import json

import pytest

from batchwright.contracts.openai import BatchStatus, Endpoint
from batchwright.rules.segments import Record
from tests.activities.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.integration.rows import START, an_order


def error_of(record: Record) -> tuple[str, str, str]:
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


async def test_a_tenants_own_quota_stands_before_the_setting() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=1)
    await batch.database.quotas.change(TENANT, {"enqueued_lines": 2}, START)
    assert not (await batch.ingest()).failed
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 2


async def test_only_lines_that_are_left_to_the_workers_are_enqueued() -> None:
    batch = await a_batch(a_line("1"), a_line("2", model="nobody"), max_enqueued_lines=1)
    assert not (await batch.ingest()).failed
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 1


async def test_an_attempt_after_a_kill_reserves_the_same_again_and_no_more() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_enqueued_lines=2)
    first = await batch.ingest()
    again = await batch.ingest()
    assert (first.failed, again.failed, again.total) == (False, False, 2)
    assert (await batch.database.quotas.used(TENANT)).enqueued_lines == 2


async def test_another_tenants_batches_take_nothing_of_the_quota() -> None:
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


async def test_with_strict_models_what_is_not_allowed_fails_the_batch_as_if_it_did_not_exist() -> None:
    batch = await a_batch(a_line("1", model="b"), a_line("2", model="nobody"), strict_models=True)
    await allow(batch, "a")
    assert (await batch.ingest()).failed
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert [(error.code, error.param, error.line) for error in row.errors] == [
        ("model_not_found", "body.model", 1),
        ("model_not_found", "body.model", 2),
    ]
