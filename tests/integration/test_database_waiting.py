"""Reasons why batches wait: told, renewed, taken back, run out; gone with the batch's end."""

from datetime import UTC, datetime, timedelta

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.waiting_base import Source, Waiting
from tests.integration.rows import an_order

START = datetime(2026, 1, 1, tzinfo=UTC)


def waiting(
    batch_id: str = "b", reason: str = "away", *, at: float = 0, source: Source = Source.WORKER
) -> Waiting:
    since = START + timedelta(seconds=at)
    return Waiting(
        tenant="acme",
        batch_id=batch_id,
        model="m",
        source=source,
        reason=reason,
        since=since,
        until=since + timedelta(seconds=30),
    )


async def test_a_repeat_renews_and_keeps_its_beginning(any_database: DatabaseLike) -> None:
    table = any_database.waiting
    assert await table.tell(waiting())
    assert not await table.tell(waiting(at=20))
    [told] = await table.of_source(Source.WORKER, START + timedelta(seconds=45))
    assert (told.since, told.until) == (START, START + timedelta(seconds=50))


async def test_another_reason_or_one_that_had_run_out_is_news(any_database: DatabaseLike) -> None:
    table = any_database.waiting
    await table.tell(waiting())
    assert await table.tell(waiting(reason="worse", at=5))
    assert await table.tell(waiting(reason="worse", at=60))


async def test_each_source_takes_back_its_own(any_database: DatabaseLike) -> None:
    table = any_database.waiting
    await table.tell(waiting())
    await table.tell(waiting(reason="nobody", source=Source.FLEET))
    assert await table.take_back("acme", "b", "m", Source.WORKER)
    assert not await table.take_back("acme", "b", "m", Source.WORKER)
    assert await table.of_source(Source.WORKER, START) == []
    assert [each.reason for each in await table.of_source(Source.FLEET, START)] == ["nobody"]


async def test_what_ran_out_is_forgotten(any_database: DatabaseLike) -> None:
    table = any_database.waiting
    await table.tell(waiting())
    await table.forget(START + timedelta(seconds=31))
    assert await table.tell(waiting(at=1))


async def test_an_end_takes_all_of_a_batch_back(any_database: DatabaseLike) -> None:
    mine = an_order()
    await any_database.batches.upsert(mine)
    told = waiting(mine.batch_id).model_copy(update={"tenant": mine.tenant})
    await any_database.waiting.tell(told)
    await any_database.batches.end(mine.tenant, mine.batch_id, BatchStatus.CANCELLED, [], START)
    assert await any_database.waiting.of_source(Source.WORKER, START) == []


async def test_a_batch_is_read_together_with_what_it_waits_for(any_database: DatabaseLike) -> None:
    mine, at = an_order(), START + timedelta(seconds=5)
    batches, tenant, id = any_database.batches, mine.tenant, mine.batch_id
    assert await batches.get_waiting(tenant, id, at) is None
    await batches.upsert(mine)
    row = await batches.get(tenant, id)
    assert await batches.get_waiting(tenant, id, at) == (row, [])
    first = waiting(id).model_copy(update={"tenant": tenant, "since": START + timedelta(microseconds=1)})
    changes = {"model": "a", "source": Source.FLEET}, {"model": "z", "until": START + timedelta(seconds=4)}
    for told in (first, *[first.model_copy(update=change) for change in changes]):
        await any_database.waiting.tell(told)
    await any_database.waiting.tell(waiting("another").model_copy(update={"tenant": tenant}))
    assert await batches.get_waiting(tenant, id, at) == (row, [first.model_copy(update=changes[0]), first])
    assert await batches.get_waiting("stranger", id, at) is None
