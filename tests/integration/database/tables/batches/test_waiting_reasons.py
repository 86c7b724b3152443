"""The table of reasons why batches wait: they are reported, renewed, cleared, and expire.

They are deleted when the batch ends.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from tests.integration.database.rows import an_order

START = datetime(2026, 1, 1, tzinfo=UTC)


def waiting(
    batch_id: str = "b", reason: str = "away", *, at: float = 0, source: WaitingSource = WaitingSource.WORKER
) -> WaitingRow:
    since = START + timedelta(seconds=at)
    return WaitingRow(
        tenant="acme",
        batch_id=batch_id,
        model="m",
        source=source,
        reason=reason,
        since=since,
        until=since + timedelta(seconds=30),
    )


async def test_a_repeated_reason_is_renewed_and_keeps_its_start(any_database: Database) -> None:
    table = any_database.waiting
    assert await table.report(waiting())
    assert not await table.report(waiting(at=20))
    [reported] = await table.get(WaitingSource.WORKER, START + timedelta(seconds=45))
    assert (reported.since, reported.until) == (START, START + timedelta(seconds=50))


async def test_a_different_or_expired_reason_counts_as_new(any_database: Database) -> None:
    table = any_database.waiting
    await table.report(waiting())
    assert await table.report(waiting(reason="worse", at=5))
    assert await table.report(waiting(reason="worse", at=60))


async def test_each_source_clears_only_its_own_reasons(any_database: Database) -> None:
    table = any_database.waiting
    await table.report(waiting())
    await table.report(waiting(reason="nobody", source=WaitingSource.FLEET))
    assert await table.clear("acme", "b", "m", WaitingSource.WORKER)
    assert not await table.clear("acme", "b", "m", WaitingSource.WORKER)
    assert await table.get(WaitingSource.WORKER, START) == []
    assert [each.reason for each in await table.get(WaitingSource.FLEET, START)] == ["nobody"]


def pause_of_user() -> WaitingRow:
    paused = waiting("batch_1", "paused", source=WaitingSource.USER)
    return paused.model_copy(update={"tenant": "t", "model": ""})


async def test_a_pause_or_resume_that_comes_after_a_later_one_changes_nothing(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    table, shown = any_database.waiting, list[int]()
    for change in (2, -1, 1, -4, 3, 5):
        if change > 0:
            await table.report_pause(pause_of_user(), change)
        else:
            await table.clear_pause("t", "batch_1", -change)
        shown.append(len(await table.get(WaitingSource.USER, START)))
    assert shown == [1, 1, 1, 0, 0, 1]


async def test_of_pauses_and_resumes_at_the_same_time_the_last_is_stored(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    table, paused = any_database.waiting, pause_of_user()
    for last in (20, 40, 60):
        changes = [table.report_pause(paused, change) for change in range(last - 19, last, 2)]
        changes += [table.clear_pause("t", "batch_1", change) for change in range(last - 18, last + 1, 2)]
        await asyncio.gather(*changes)
        assert await table.get(WaitingSource.USER, START) == []


async def test_an_ended_batch_is_not_shown_as_paused(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batch_ends.fail_validation("t", "batch_1", errors=[], total=0, at=START)
    await any_database.waiting.report_pause(pause_of_user(), 1)
    assert await any_database.waiting.get(WaitingSource.USER, START) == []


async def test_the_reasons_of_several_batches_are_read_at_once(any_database: Database) -> None:
    table = any_database.waiting
    reported = [
        waiting("b2"),
        waiting("b1", source=WaitingSource.FLEET),
        waiting("b1"),
        waiting("b1").model_copy(update={"model": "a"}),
        waiting("b3"),
        waiting("b1").model_copy(update={"tenant": "other"}),
        waiting("b2", at=-60).model_copy(update={"model": "expired"}),
    ]
    for each in reported:
        await table.report(each)
    found = await table.of_batches([("acme", "b1"), ("acme", "b2"), ("acme", "b4")], START)
    assert found == [reported[3], reported[1], reported[2], reported[0]]
    assert await table.of_batches([], START) == []


async def test_expired_reasons_are_deleted(any_database: Database) -> None:
    table = any_database.waiting
    await table.report(waiting())
    await table.delete_expired(START + timedelta(seconds=31))
    assert await table.report(waiting(at=1))


async def test_the_end_of_a_batch_clears_all_its_reasons(any_database: Database) -> None:
    mine = an_order()
    await any_database.batches.upsert(mine)
    reported = waiting(mine.batch_id).model_copy(update={"tenant": mine.tenant})
    await any_database.waiting.report(reported)
    await any_database.batch_ends.end_without_files(
        mine.tenant, mine.batch_id, BatchStatus.CANCELLED, [], START
    )
    assert await any_database.waiting.get(WaitingSource.WORKER, START) == []


async def test_a_batch_is_read_together_with_its_waiting_reasons(any_database: Database) -> None:
    mine, at = an_order(), START + timedelta(seconds=5)
    batches, tenant, id = any_database.batches, mine.tenant, mine.batch_id
    assert await batches.get_with_reasons(tenant, id, at) is None
    await batches.upsert(mine)
    row = await batches.get(tenant, id)
    assert await batches.get_with_reasons(tenant, id, at) == (row, [])
    first = waiting(id).model_copy(update={"tenant": tenant, "since": START + timedelta(microseconds=1)})
    changes = (
        {"model": "a", "source": WaitingSource.FLEET},
        {"model": "z", "until": START + timedelta(seconds=4)},
    )
    for reported in (first, *[first.model_copy(update=change) for change in changes]):
        await any_database.waiting.report(reported)
    await any_database.waiting.report(waiting("another").model_copy(update={"tenant": tenant}))
    assert await batches.get_with_reasons(tenant, id, at) == (
        row,
        [first.model_copy(update=changes[0]), first],
    )
    assert await batches.get_with_reasons("stranger", id, at) is None
