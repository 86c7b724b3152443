"""Batches that wait for a quota of their tenant.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.terms import BatchStatus, Quota
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection
from batchwright.database.sql import queries
from batchwright.database.tables.tenants.admissions import AdmissionQueries
from batchwright.rules.tenants.quotas import EnqueuedWork, QuotaExcess, QuotaLimits
from tests.integration.database.rows import after, an_order

TIGHT = QuotaLimits(enqueued_lines=10, enqueued_tokens=1000)


async def enqueue(database: Database, id: str, lines: int) -> QuotaExcess | None:
    await database.batches.upsert(an_order(id, "t"))
    return await database.quotas.reserve("t", id, EnqueuedWork(lines, 0), TIGHT)


async def wait_for(database: Database, id: str, lines: int, created: int) -> QuotaExcess | None:
    """Let a batch reserve `lines` lines of the quota of enqueued lines.

    The creation time of the batch is `created` seconds after the current time. Return by how much the batch
    exceeds the quota if it must wait, or None if it has reserved its lines.
    """
    now = datetime.now(UTC)
    order = an_order(id, "t", created_at=now + timedelta(seconds=created), deadline=now + timedelta(days=1))
    await database.batches.upsert(order)
    return await database.quotas.reserve("t", id, EnqueuedWork(lines, lines), TIGHT, waits=True)


async def test_waiting_batches_get_the_quota_in_the_order_of_their_creation(any_database: Database) -> None:
    """The last batch would fit into the quota, but does not overtake the one before it."""
    assert await enqueue(any_database, "batch_running", 8) is None
    large = await wait_for(any_database, "batch_large", 5, created=1)
    small = await wait_for(any_database, "batch_small", 2, created=2)
    assert large == QuotaExcess(Quota.ENQUEUED_LINES, 10, 8, 5)
    assert small == QuotaExcess(Quota.ENQUEUED_LINES, 10, 8, 2, before=1)
    assert await any_database.quotas.requested("t", "batch_small") == EnqueuedWork(2, 2)
    await any_database.batch_ends.end_without_files("t", "batch_running", BatchStatus.FAILED, [], after(3))
    assert await wait_for(any_database, "batch_small", 2, created=2) == QuotaExcess(
        Quota.ENQUEUED_LINES, 10, 0, 2, before=1
    )
    assert await wait_for(any_database, "batch_large", 5, created=1) is None
    assert await wait_for(any_database, "batch_small", 2, created=2) is None
    assert await enqueue(any_database, "batch_new", 4) == QuotaExcess(Quota.ENQUEUED_LINES, 10, 7, 4)


async def test_a_cancelled_batch_lets_those_after_it_go_first(any_database: Database) -> None:
    assert await enqueue(any_database, "batch_running", 8) is None
    await wait_for(any_database, "batch_large", 5, created=1)
    await any_database.batches.request_cancel("t", "batch_large", after(3))
    assert await wait_for(any_database, "batch_small", 2, created=2) is None


async def test_a_batch_that_alone_exceeds_the_quota_is_not_recorded_as_waiting(
    any_database: Database,
) -> None:
    excess = await wait_for(any_database, "batch_huge", 11, created=1)
    assert excess == QuotaExcess(Quota.ENQUEUED_LINES, 10, 0, 11)
    assert await any_database.quotas.requested("t", "batch_huge") is None
    assert await wait_for(any_database, "batch_small", 2, created=2) is None


async def test_a_batch_that_never_waited_and_an_unknown_one_request_nothing(any_database: Database) -> None:
    await enqueue(any_database, "batch_running", 8)
    assert await any_database.quotas.requested("t", "batch_running") is None
    assert await any_database.quotas.requested("t", "batch_unknown") is None


async def test_a_batch_with_a_reservation_is_not_behind_an_earlier_one_that_began_to_wait_later(
    any_database: Database,
) -> None:
    """The earlier batch waits for lines that the later batch has reserved. So the later batch must not wait
    for the earlier one.
    """
    assert await enqueue(any_database, "batch_running", 8) is None
    assert await wait_for(any_database, "batch_late", 8, created=2) is not None
    await any_database.batch_ends.end_without_files("t", "batch_running", BatchStatus.FAILED, [], after(3))
    assert await wait_for(any_database, "batch_late", 8, created=2) is None
    assert await wait_for(any_database, "batch_early", 8, created=1) == QuotaExcess(
        Quota.ENQUEUED_LINES, 10, 8, 8
    )
    assert await wait_for(any_database, "batch_late", 8, created=2) is None
    await any_database.batch_ends.end_without_files("t", "batch_late", BatchStatus.FAILED, [], after(3))
    assert await wait_for(any_database, "batch_early", 8, created=1) is None


async def test_a_repeated_attempt_keeps_its_reservation_if_an_earlier_batch_began_to_wait(
    any_database: Database,
) -> None:
    """The later batch never waited: its first attempt reserved the lines, and failed after that."""
    assert await wait_for(any_database, "batch_late", 8, created=2) is None
    assert await wait_for(any_database, "batch_early", 8, created=1) is not None
    assert await wait_for(any_database, "batch_late", 8, created=2) is None
    assert (await any_database.quotas.used("t")).enqueued_lines == 8


async def test_a_batch_that_waits_again_has_no_reservation(any_database: Database) -> None:
    """The quota was lowered between two attempts of the batch."""
    assert await enqueue(any_database, "batch_running", 4) is None
    assert await wait_for(any_database, "batch_late", 6, created=2) is None
    lower, six = QuotaLimits(enqueued_lines=6), EnqueuedWork(6, 6)
    assert await any_database.quotas.reserve("t", "batch_late", six, lower, waits=True) is not None
    assert (await any_database.quotas.used("t")).enqueued_lines == 4
    assert await wait_for(any_database, "batch_early", 6, created=1) is None


@pytest.mark.parametrize("status", [BatchStatus.FAILED, BatchStatus.CANCELLED])
async def test_a_batch_that_ended_while_it_waited_lets_those_after_it_go_first(
    any_database: Database, status: BatchStatus
) -> None:
    assert await enqueue(any_database, "batch_running", 8) is None
    await wait_for(any_database, "batch_large", 5, created=1)
    await any_database.batch_ends.end_without_files("t", "batch_large", status, [], after(3))
    assert await wait_for(any_database, "batch_small", 2, created=2) is None


async def test_an_attempt_of_a_batch_that_is_not_next_does_not_take_the_lock_of_its_tenant(
    database: Database, connection: DatabaseConnection
) -> None:
    assert await enqueue(database, "batch_running", 8) is None
    await wait_for(database, "batch_first", 5, created=1)
    await wait_for(database, "batch_second", 2, created=2)
    async with connection.transaction():
        await connection.execute(queries(AdmissionQueries, "admissions").lock_tenant, "t")
        found = await wait_for(database, "batch_second", 2, created=2)
    assert found == QuotaExcess(Quota.ENQUEUED_LINES, 10, 8, 2, before=1)


async def test_a_waiting_batch_for_which_a_lower_quota_has_no_room_fails_before_it_is_next(
    any_database: Database,
) -> None:
    assert await enqueue(any_database, "batch_running", 8) is None
    await wait_for(any_database, "batch_first", 5, created=1)
    await wait_for(any_database, "batch_second", 4, created=2)
    lower, four = QuotaLimits(enqueued_lines=3), EnqueuedWork(4, 4)
    found = await any_database.quotas.reserve("t", "batch_second", four, lower, waits=True)
    assert found is not None
    assert not found.can_wait
