"""Second chances, in memory and in PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.batch import Chance, Origin
from batchwright.contracts.openai import BatchStatus, Usage
from batchwright.contracts.retention import Place
from batchwright.database.base import DatabaseLike
from batchwright.database.errors import UnknownBatch
from batchwright.database.retention_base import Ended
from batchwright.database.rows import ModelCount
from tests.integration.rows import START, a_file, after, an_order, told

RETRY = Origin(batch_id="batch_1", chance=Chance.RETRY)
RESUME = Origin(batch_id="batch_1", chance=Chance.RESUME)
LATER = datetime.now(UTC) + timedelta(days=1)


async def test_the_first_order_holds_the_chance(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    first, second = (an_order(id, origin=RETRY) for id in ("batch_2", "batch_3"))
    held = [
        await any_database.chances.claim(first, RETRY, a_file("file-2")),
        await any_database.chances.claim(second, RETRY, a_file("file-3")),
        await any_database.chances.find("t", RETRY),
    ]
    assert held == [first, first, first]
    assert await any_database.files.get("t", "file-2") is not None
    assert await any_database.files.get("t", "file-3") is None


async def test_of_calls_at_once_one_wins(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    orders = [an_order(f"batch_{n}", origin=RESUME) for n in range(2, 6)]
    held = await asyncio.gather(*(any_database.chances.claim(order, RESUME) for order in orders))
    assert len({order.batch_id for order in held}) == 1


async def test_a_batch_has_a_chance_of_each_kind_and_tenants_share_none(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.chances.claim(an_order("batch_2"), RETRY)
    assert await any_database.chances.find("t", RESUME) is None
    assert await any_database.chances.find("u", RETRY) is None
    with pytest.raises(UnknownBatch):
        await any_database.chances.claim(an_order("batch_3", "u"), RETRY)


async def test_a_row_knows_its_origin(any_database: DatabaseLike) -> None:
    order = an_order(origin=Origin(batch_id="batch_0", chance=Chance.RESUME))
    row = await any_database.batches.upsert(order)
    assert row.order == order


async def test_what_ingestion_took_over_counts_from_the_beginning(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    models = [ModelCount(model="a", lines=5, completed=2, failed=1), ModelCount(model="b", lines=1, failed=1)]
    await any_database.batches.begin(
        "t", "batch_1", total=6, models=models, at=after(1), unserved=2, completed=2
    )
    await any_database.progress.record([told(usage=Usage(input_tokens=1))])
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    [live] = await any_database.fleet.live()
    assert (row.completed, row.failed) == (3, 2)
    assert [(c.model, c.completed, c.failed) for c in row.models] == [("a", 3, 1), ("b", 0, 1)]
    assert (live.lines, live.settled) == (2, 1)
    assert await any_database.fleet.lines_left() == {"a": 1}


async def test_results_that_are_kept_outlive_retention(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batches.end("t", "batch_1", BatchStatus.FAILED, [], after(1), LATER)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == LATER
    assert await any_database.retention.ended_batches(LATER, Place(), 10) == []
    assert await any_database.retention.live_batches("t") == {"batch_1"}


async def test_a_resumption_keeps_results_for_as_long_as_it_may_take(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batches.end("t", "batch_1", BatchStatus.FAILED, [], after(1), LATER)
    order = an_order("batch_2", expires_at=LATER + timedelta(days=3))
    await any_database.chances.claim(order, RESUME)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == order.expires_at


async def test_a_chance_is_forgotten_with_the_batch_that_was_made(any_database: DatabaseLike) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batches.upsert(an_order("batch_2", origin=RESUME))
    await any_database.chances.claim(an_order("batch_2"), RESUME)
    await any_database.batches.end("t", "batch_2", BatchStatus.FAILED, [], after(1))
    gone = Ended("t", "batch_2", after(1))
    await any_database.retention.batch_swept(gone, START)
    await any_database.retention.remove_batch(gone)
    assert await any_database.chances.find("t", RESUME) is None
