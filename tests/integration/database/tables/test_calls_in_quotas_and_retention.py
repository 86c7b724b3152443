"""Quotas to which single calls count, and how long calls are kept.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import UTC, datetime

from batchwright.contracts.calls import CallStatus
from batchwright.contracts.temporal_payloads.retention import SWEEP_START
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.tables.operations.operator_batches import OperatorBatchFilters
from tests.integration.database.admission_rows import admit_bytes
from tests.integration.database.call_rows import (
    GROUP,
    LATER,
    a_call,
    a_rolling_order,
    an_answer,
    opened,
    status_of,
)
from tests.integration.database.rows import START, after, an_order
from tests.integration.database.webhook_rows import an_endpoint, attempt, attempted, create, recorded


async def test_rolling_batches_are_in_no_list_and_in_no_quota_of_batches(any_database: Database) -> None:
    await opened(any_database)
    await any_database.batches.upsert(an_order("batch_2"))
    operators, filters = any_database.operator_batches, OperatorBatchFilters(START)
    for listed, more in (
        await any_database.batch_list.page("t", limit=10, after=None),
        await operators.page(filters, limit=10, ascending=True, after=None),
        await operators.page(filters, limit=10, ascending=False, after=None),
    ):
        assert ([row.order.batch_id for row in listed], more) == (["batch_2"], False)
    (count,) = await operators.counts(forecast_since=START, ended_since=START)
    assert count.batches == 1
    assert await operators.owner("batch_1") == "t"
    assert await any_database.batch_list.count_live("t") == 1
    await any_database.calls.open("group_2", a_rolling_order("batch_3", group="group_2"), max_batches=9)
    third = a_rolling_order("batch_4", group="group_3")
    assert not await any_database.calls.open("group_3", third, max_batches=2)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(20))
    assert await any_database.calls.open("group_3", third, max_batches=2)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.order == a_rolling_order()


async def test_concurrent_calls_open_no_more_rolling_batches_than_a_tenant_may_have(
    any_database: Database,
) -> None:
    opened = await asyncio.gather(
        *(
            any_database.calls.open(
                f"group_{n}", a_rolling_order(f"batch_{n}", group=f"group_{n}"), max_batches=3
            )
            for n in range(8)
        )
    )
    assert sum(opened) == 3


async def test_all_bytes_of_calls_count_as_stored_and_the_end_of_a_call_removes_its_request(
    any_database: Database,
) -> None:
    calls, quotas, size = any_database.calls, any_database.quotas, len(a_call().request) + 2
    await opened(any_database)
    for number in range(1, 5):
        stored = a_call(f"resp_{number}").model_copy(update={"echoed": b"{}"})
        assert await calls.insert(stored) is not None
    assert await quotas.stored("t") == 4 * size
    await calls.cancel("t", "resp_4")
    await calls.collect("t", GROUP, "batch_1")
    await calls.cancel("t", "resp_3")
    await calls.answer("t", [an_answer("resp_2", b"12345")])
    assert await quotas.stored("t") == (used := size + 2 + 2 + 2 + 5)
    assert not await admit_bytes(any_database, "file-1", 1, used)
    assert await admit_bytes(any_database, "file-1", 1, used + 1)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(20))
    assert await quotas.stored("t") == 4 * 2 + 5
    for number in range(1, 5):
        call = await calls.get("t", f"resp_{number}")
        assert call is not None
        assert (call.request, call.echoed) == (b"", b"{}")


async def test_the_row_of_a_rolling_batch_is_kept_for_two_days_only(any_database: Database) -> None:
    await opened(any_database)
    await any_database.batches.upsert(an_order("batch_2"))
    for id in ("batch_1", "batch_2"):
        await any_database.batch_ends.end_without_files("t", id, BatchStatus.FAILED, [], after(20))
    retention = any_database.retention
    for row in await retention.ended_batches(after(30), SWEEP_START, 10):
        assert await retention.record_sweep(row, after(30))
    assert [row.id for row in await retention.old_batches(after(10), SWEEP_START, 10)] == ["batch_1"]
    assert len(await retention.old_batches(after(30), SWEEP_START, 10)) == 2


async def test_old_calls_are_removed(any_database: Database) -> None:
    """Old calls are removed if they have ended, or if the API never accepted them. The other calls still need
    an answer.
    """
    calls = any_database.calls
    await opened(any_database, "resp_1", "resp_2")
    await calls.answer("t", [an_answer()])
    await calls.open("group_2", a_rolling_order("batch_2", group="group_2"), max_batches=9)
    assert await calls.insert(a_call("resp_3", group="group_2")) is not None
    now = datetime.now(UTC)
    assert await calls.count_old(now - LATER) == await calls.remove_old(now - LATER, 10) == 0
    assert await calls.count_old(now + LATER) == 2
    assert await calls.remove_old(now + LATER, 10) == 2
    assert [await status_of(any_database, f"resp_{number}") for number in (1, 2, 3)] == [
        None,
        CallStatus.QUEUED,
        None,
    ]


async def test_a_rolling_batch_that_was_never_started_is_removed(any_database: Database) -> None:
    calls, now = any_database.calls, datetime.now(UTC)
    await calls.open(GROUP, a_rolling_order(), max_batches=9)
    await calls.remove_old(now - LATER, 10)
    second = a_rolling_order("batch_2", group="group_2")
    assert not await calls.open("group_2", second, max_batches=1)
    await calls.remove_old(now + LATER, 10)
    assert await calls.open("group_2", second, max_batches=1)


async def test_the_callback_of_an_old_call_is_removed_with_it_unless_its_delivery_is_pending(
    any_database: Database,
) -> None:
    """The receiver of the callback of `resp_2` has not accepted it yet."""
    own = [an_endpoint(f"webhook_{n}", batch_id=f"resp_{n}") for n in (1, 2)]
    await create(any_database, an_endpoint("webhook_all"), *own)
    await opened(any_database, "resp_1", "resp_2", notifies=True)
    await any_database.calls.answer("t", [an_answer("resp_1"), an_answer("resp_2")])
    for id, reason in (("webhook_1", ""), ("webhook_2", "Status 500.")):
        [delivery] = await recorded(any_database, id)
        await attempted(any_database, delivery, attempt(20, reason))
    assert await any_database.calls.remove_old(datetime.now(UTC) + LATER, 10) == 2
    endpoints = any_database.webhook_endpoints
    ids = ("webhook_all", "webhook_1", "webhook_2")
    assert [await endpoints.get("t", id) is not None for id in ids] == [True, False, True]
    assert [len(await recorded(any_database, id)) for id in ids] == [2, 0, 1]
