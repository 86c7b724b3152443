"""The search for batches by the custom_id of one of their lines.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.contracts.calls import RollingBatch
from batchwright.contracts.temporal_payloads.batch import BatchForecast, BatchPolicy, ModelCounts, WindowFit
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables.batches import custom_ids
from batchwright.database.tables.operations import operator_batches
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.database.tables.operations.operator_batches import OperatorBatchFilters
from batchwright.rules.batch_filters import BatchFilters
from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.rules.input.custom_id_search import CustomIdIndex
from tests.fakes.tables.batches.custom_ids import part_of
from tests.integration.database.rows import START, after, an_order, an_outcome, slice_progress

ALL = OperatorBatchFilters(forecast_since=START)


async def a_batch(
    database: Database, number: int, *ids: str, tenant: str = "t", model: str = "a", **order: object
) -> None:
    """Create a batch with a line for each of these custom ids. It began `number` seconds after START."""
    made = an_order(f"batch_{number}", tenant, created_at=after(number), **order)
    await database.batches.upsert(made)
    await database.custom_ids.store(tenant, made.batch_id, 0, part_of(*ids))
    models = [ModelCounts(model=model, lines=len(ids))]
    await database.batches.start(tenant, made.batch_id, total=len(ids), models=models, at=after(number))


async def found(database: Database, custom_id: str, **filters: Any) -> list[str]:
    page = await database.custom_ids.search(
        "t", custom_id, limit=9, after=None, filters=BatchFilters(**filters)
    )
    assert page.last_id is None
    return [row.order.batch_id for row in page.rows]


async def found_by_operators(
    database: Database, custom_id: str, filters: OperatorBatchFilters = ALL
) -> list[str]:
    """Return the batches that operators find, oldest first.

    Check that a search with the newest first finds the same batches.
    """
    search = database.operator_batches.search
    page = await search(custom_id, filters, limit=9, ascending=True, after=None)
    newest_first = await search(custom_id, filters, limit=9, ascending=False, after=None)
    assert newest_first.rows == page.rows[::-1]
    return [f"{row.order.tenant}/{row.order.batch_id}" for row in page.rows]


async def test_the_batches_of_a_line_are_found_newest_first_and_only_those_of_the_tenant(
    any_database: Database,
) -> None:
    await a_batch(any_database, 1, "a", "b")
    await a_batch(any_database, 2, "b", "c")
    await a_batch(any_database, 3, "b", tenant="other")
    await a_batch(any_database, 4, "ü\0\U0001f600 '")
    assert await found(any_database, "b") == ["batch_2", "batch_1"]
    assert await found(any_database, "c") == ["batch_2"]
    assert await found(any_database, "ü\0\U0001f600 '") == ["batch_4"]
    assert await found(any_database, "B") == await found(any_database, "") == []
    assert await found_by_operators(any_database, "b") == ["t/batch_1", "t/batch_2", "other/batch_3"]


async def test_a_line_in_any_part_of_a_large_batch_is_found(any_database: Database) -> None:
    await a_batch(any_database, 1, "a")
    await any_database.custom_ids.store("t", "batch_1", 1, part_of("b"))
    assert await found(any_database, "a") == await found(any_database, "b") == ["batch_1"]


async def test_a_repeated_attempt_changes_no_part(any_database: Database) -> None:
    await a_batch(any_database, 1, "a")
    await any_database.custom_ids.store("t", "batch_1", 0, part_of("b"))
    assert await found(any_database, "a") == ["batch_1"]
    assert await found(any_database, "b") == []


async def test_a_batch_without_a_row_stores_nothing(any_database: Database) -> None:
    await any_database.custom_ids.store("t", "batch_1", 0, part_of("a"))
    await any_database.batches.upsert(an_order())
    assert await found(any_database, "a") == []


async def test_a_deleted_batch_is_found_no_longer(any_database: Database) -> None:
    await a_batch(any_database, 1, "a")
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(output=None, error=None), after(20))
    assert await found(any_database, "a") == ["batch_1"]
    assert await any_database.batch_deletions.remove("t", "batch_1", after(30))
    assert await found(any_database, "a") == await found_by_operators(any_database, "a") == []


async def test_a_batch_that_fails_validation_at_a_later_attempt_is_not_found(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.custom_ids.store("t", "batch_1", 0, part_of("a"))
    assert await found(any_database, "a") == []
    await any_database.batch_ends.fail_validation("t", "batch_1", errors=[], total=1, at=after(5))
    tagged = await found(any_database, "a", endpoint=an_order().endpoint)
    assert await found(any_database, "a") == tagged == await found_by_operators(any_database, "a") == []


async def test_a_rolling_batch_is_not_found(any_database: Database) -> None:
    policy = BatchPolicy(rolling=RollingBatch(group="g", open_seconds=0))
    await a_batch(any_database, 1, "a", policy=policy)
    assert await found(any_database, "a") == await found_by_operators(any_database, "a") == []


async def test_a_search_is_combined_with_all_other_filters(any_database: Database) -> None:
    await a_batch(any_database, 1, "a", metadata={"run": "1"})
    await a_batch(any_database, 2, "a", metadata={"run": "2"}, endpoint=Endpoint.EMBEDDINGS)
    await a_batch(any_database, 3, "b", metadata={"run": "1"})
    await any_database.batches.request_cancel("t", "batch_2", after(20))
    for filters, ids in (
        ({"status": BatchStatus.IN_PROGRESS}, ["batch_1"]),
        ({"status": BatchStatus.CANCELLING, "metadata": (("run", "2"),)}, ["batch_2"]),
        ({"metadata": (("run", "1"),)}, ["batch_1"]),
        ({"metadata": (("run", "1"),), "endpoint": Endpoint.EMBEDDINGS}, []),
        ({"model": "a", "created_after": after(2)}, ["batch_2"]),
        ({"created_before": after(2)}, ["batch_1"]),
    ):
        assert await found(any_database, "a", **filters) == ids
    cancelling = OperatorBatchFilters(START, "t", [BatchStatus.CANCELLING], "a")
    assert await found_by_operators(any_database, "a", cancelling) == ["t/batch_2"]


async def test_a_search_of_operators_is_combined_with_each_of_their_filters(any_database: Database) -> None:
    """The forecast of a batch counts only for this batch, and only while it is in progress."""
    for number, tenant in ((1, "t"), (2, "u"), (4, "t"), (5, "t")):
        await a_batch(any_database, number, "a", tenant=tenant)
    await a_batch(any_database, 3, "a", model="b")
    await a_batch(any_database, 1, "b", tenant="u")
    made = BatchForecast(
        made_at=after(60),
        lines_per_second=1,
        lines_ahead=0,
        p50_seconds=1,
        p90_seconds=2,
        window=WindowFit.LATE,
    )
    late = (("u", 1), ("t", 3), ("t", 4), ("t", 5))
    rows = [ForecastRow(tenant, f"batch_{number}", made) for tenant, number in late]
    assert len(await any_database.forecasts.publish(rows, after(60))) == 4
    for id, tenant in (("batch_2", "u"), ("batch_4", "t")):
        await any_database.batches.request_cancel(tenant, id, after(70))
    await any_database.batches.start_finalizing("t", "batch_5", after(70))
    for filters, ids in (
        (OperatorBatchFilters(START, tenant="u"), ["u/batch_2"]),
        (OperatorBatchFilters(START, statuses=[BatchStatus.FINALIZING]), ["t/batch_5"]),
        (OperatorBatchFilters(START, model="b"), ["t/batch_3"]),
        (OperatorBatchFilters(START, forecast=WindowFit.LATE), ["t/batch_3"]),
        (OperatorBatchFilters(START, forecast=WindowFit.AT_RISK), []),
        (OperatorBatchFilters(after(60), forecast=WindowFit.LATE), []),
    ):
        assert await found_by_operators(any_database, "a", filters) == ids, filters


async def test_pages_continue_after_their_last_batch(any_database: Database) -> None:
    for number in range(5):
        await a_batch(any_database, number, "b" if number == 3 else "a")
    search = any_database.custom_ids.search
    first = await search("t", "a", limit=2, after=None)
    assert ([row.order.batch_id for row in first.rows], first.last_id) == (["batch_4", "batch_2"], "batch_2")
    rest = await search("t", "a", limit=2, after=first.last_id)
    assert ([row.order.batch_id for row in rest.rows], rest.last_id) == (["batch_1", "batch_0"], None)
    with pytest.raises(UnknownCursor):
        await search("u", "a", limit=2, after="batch_2")
    for ascending, ids in ((True, ["batch_0", "batch_1"]), (False, ["batch_4", "batch_2"])):
        page = await any_database.operator_batches.search("a", ALL, limit=2, ascending=ascending, after=None)
        assert ([row.order.batch_id for row in page.rows], page.last_id) == (ids, ids[-1])
        page = await any_database.operator_batches.search(
            "a", ALL, limit=2, ascending=ascending, after=page.last_id
        )
        assert len(page.rows) == 2
        assert page.last_id is None


async def test_the_rows_are_those_of_the_list(any_database: Database) -> None:
    await a_batch(any_database, 1, "a")
    await any_database.progress.record([slice_progress(completed=1)])
    ((row,), _) = await any_database.custom_ids.search("t", "a", limit=1, after=None)
    ((listed,), _) = await any_database.batch_list.page("t", limit=1, after=None)
    assert row == listed


@pytest.mark.integration
async def test_a_page_examines_a_limited_number_of_batches_and_continues_after_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (custom_ids, operator_batches):
        monkeypatch.setattr(module, "EXAMINED_AT_ONCE", 2)
    monkeypatch.setattr(custom_ids, "MAX_STATEMENTS", 2)
    for number in range(9):
        await a_batch(database, number, "a" if number in (0, 7) else "b")
    pages, after_id = list[list[str]](), None
    while True:
        page = await database.custom_ids.search("t", "a", limit=5, after=after_id)
        pages.append([row.order.batch_id for row in page.rows])
        if page.last_id is None:
            break
        after_id = page.last_id
    assert pages == [["batch_7"], [], ["batch_0"]]
    for ascending, after_id, last_id in ((True, "batch_0", "batch_4"), (False, "batch_7", "batch_3")):
        page = await database.operator_batches.search("a", ALL, limit=5, ascending=ascending, after=after_id)
        assert (page.rows, page.last_id) == ([], last_id)
    # A page that is full after the first statement needs no other one.
    page = await database.custom_ids.search("t", "b", limit=1, after="batch_7")
    assert ([row.order.batch_id for row in page.rows], page.last_id) == (["batch_6"], "batch_6")


@pytest.mark.integration
async def test_a_page_that_takes_too_long_ends_and_continues_after_the_examined_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (custom_ids, operator_batches):
        monkeypatch.setattr(module, "EXAMINED_AT_ONCE", 2)
    clock = SimpleNamespace(monotonic=count(step=3).__next__)  # a statement takes three seconds
    monkeypatch.setattr(custom_ids, "time", clock)
    for number in range(9):
        await a_batch(database, number, "a" if number in (0, 7) else "b")
    page = await database.custom_ids.search("t", "a", limit=5, after=None)
    assert ([row.order.batch_id for row in page.rows], page.last_id) == (["batch_7"], "batch_5")
    page = await database.custom_ids.search("t", "a", limit=5, after=page.last_id)
    assert (page.rows, page.last_id) == ([], "batch_1")
    page = await database.operator_batches.search("a", ALL, limit=5, ascending=True, after="batch_0")
    assert (page.rows, page.last_id) == ([], "batch_4")


@pytest.mark.integration
async def test_postgresql_finds_exactly_what_is_in_the_index(
    database: Database, connection: DatabaseConnection
) -> None:
    index = CustomIdIndex(GrowingBytes)
    index.add_all([f"id-{number}" for number in range(3_000)])
    (part,) = index.parts()
    await database.batches.upsert(an_order(created_at=START - timedelta(days=1)))
    await database.custom_ids.store("t", "batch_1", 0, part)
    rows = await connection.fetch(
        "SELECT n FROM custom_ids i, generate_series(0, 5999) n "
        "WHERE contains_custom_id(i.salt, i.bucket_bytes, i.buckets, convert_to('id-' || n, 'UTF8'))"
    )
    assert sorted(row["n"] for row in rows) == list(range(3_000))
