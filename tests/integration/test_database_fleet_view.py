"""What every database tells of all live batches; `any_database` runs it on each."""

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import LiveBatch, ModelCount
from tests.integration.rows import START, a_running_batch, after, an_order, an_outcome, told


async def test_a_batch_before_ingestion_has_no_lines_yet(any_database: DatabaseLike) -> None:
    order = an_order()
    await any_database.batches.upsert(order)
    assert await any_database.fleet.live() == [
        LiveBatch(
            tenant="t",
            id="batch_1",
            status=BatchStatus.VALIDATING,
            created_at=START,
            expires_at=order.expires_at,
            entered_at=START,
            lines=0,
            settled=0,
            begun_at=None,
        )
    ]
    assert await any_database.fleet.lines_left() == {}


async def test_lines_that_ingestion_settled_are_nobodys_work(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([told(0, completed=1, failed=1)])
    (batch,) = await any_database.fleet.live()
    assert (batch.lines, batch.settled) == (9, 2)
    assert (batch.status, batch.entered_at, batch.begun_at) == (BatchStatus.IN_PROGRESS, after(10), after(10))
    assert await any_database.fleet.lines_left() == {"a": 1, "b": 6}


async def test_a_model_that_nobody_served_has_no_lines_left(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    models = [ModelCount(model="a", lines=3), ModelCount(model="nowhere", lines=1, failed=1)]
    await any_database.batches.begin("t", "batch_1", total=4, models=models, at=after(1), unserved=1)
    assert await any_database.fleet.lines_left() == {"a": 3}


async def test_lines_left_add_up_over_batches_and_tenants(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    await any_database.batches.upsert(an_order("batch_2", tenant="u"))
    models = [ModelCount(model="a", lines=5)]
    await any_database.batches.begin("u", "batch_2", total=5, models=models, at=after(1))
    await any_database.progress.record([told(0, completed=3)])
    assert await any_database.fleet.lines_left() == {"a": 5, "b": 6}
    assert sorted(batch.tenant for batch in await any_database.fleet.live()) == ["t", "u"]


async def test_the_status_is_the_one_that_is_shown(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database, "batch_1")
    await a_running_batch(any_database, "batch_2")
    await any_database.batches.start_finalizing("t", "batch_1", after(20))
    await any_database.batches.note_cancel("t", "batch_2", after(30))
    found = {batch.id: (batch.status, batch.entered_at) for batch in await any_database.fleet.live()}
    assert found == {
        "batch_1": (BatchStatus.FINALIZING, after(20)),
        "batch_2": (BatchStatus.CANCELLING, after(30)),
    }


async def test_a_batch_that_has_ended_is_not_live(any_database: DatabaseLike) -> None:
    await a_running_batch(any_database)
    await any_database.batches.finish("t", "batch_1", an_outcome(), after(20))
    assert await any_database.fleet.live() == []
    assert await any_database.fleet.lines_left() == {}
