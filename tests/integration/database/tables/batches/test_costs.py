"""Costs of batches, and caps on them.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import ModelUsage
from batchwright.contracts.terms import Endpoint, Usage
from batchwright.database.database import Database
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import BatchSpending, SliceKey
from batchwright.rules.planning.cost_estimate import OutputHistory
from batchwright.rules.token_costs import amount_of
from tests.integration.database.rows import MODELS, START, after, an_order, an_outcome, slice_progress

PRICES = {"a": PriceConfig(currency="EUR", input="0.1", request="1")}
KEY = BatchKey("t", "batch_1")


async def started(database: Database, id: str = "batch_1", tenant: str = "t", **changes: object) -> None:
    await database.batches.upsert(an_order(id, tenant, **changes))
    await database.batches.start(tenant, id, total=9, models=MODELS, at=START, prices=PRICES)


async def test_a_batch_keeps_the_prices_with_which_it_was_planned(any_database: Database) -> None:
    await started(any_database, max_cost="12.5")
    other = {"a": PriceConfig(input="9")}
    assert not await any_database.batches.start("t", "batch_1", total=9, models=[], at=START, prices=other)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert (row.prices, row.order.max_cost) == (PRICES, "12.5")


async def test_usage_is_counted_by_model_while_a_batch_runs_and_as_finalization_counted_it(
    any_database: Database,
) -> None:
    await started(any_database)
    usage = Usage(input_tokens=3, cached_tokens=1, output_tokens=2, reasoning_tokens=1)
    rows = [
        slice_progress(0, usage=usage),
        slice_progress(1, usage=usage, completed=4),
        slice_progress(0, model="b"),
    ]
    await any_database.progress.record(rows)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.model_usage == [
        ModelUsage(
            model="a", requests=5, input_tokens=6, cached_tokens=2, output_tokens=4, reasoning_tokens=2
        ),
        ModelUsage(model="b", requests=1),
    ]
    assert row.usage == usage + usage
    outcome = an_outcome()
    ended, _ = await any_database.batch_ends.finish("t", "batch_1", outcome, after(5))
    assert (ended.model_usage, ended.prices) == (outcome.model_usage, PRICES)


async def test_only_batches_with_a_cap_are_compared_with_it_without_the_slices_left_out(
    any_database: Database,
) -> None:
    await started(any_database, max_cost="0.000001")
    await started(any_database, "batch_2")
    await started(any_database, "batch_3", max_cost="7")
    usage = Usage(input_tokens=10)
    await any_database.progress.record([slice_progress(n, usage=usage) for n in range(3)])
    other = BatchKey("t", "batch_3")
    asked = {KEY: [SliceKey("a", 1)], BatchKey("t", "batch_2"): [], BatchKey("u", "batch_3"): [], other: []}
    assert await any_database.progress.spending(asked) == {
        KEY: BatchSpending(amount_of("0.000001"), amount_of("2.000002")),
        other: BatchSpending(amount_of("7"), 0),
    }
    assert await any_database.progress.spending({KEY: []}) == {
        KEY: BatchSpending(10**6, amount_of("3.000003"))
    }


async def test_a_cap_changes_only_while_the_batch_is_in_progress(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    assert not await any_database.batches.set_max_cost("t", "batch_1", "2")
    await started(any_database)
    assert await any_database.batches.set_max_cost("t", "batch_1", "2.50")
    assert not await any_database.batches.set_max_cost("u", "batch_1", "9")
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.order.max_cost in ("2.5", "2.50")
    assert await any_database.batches.set_max_cost("t", "batch_1", None)
    await any_database.batches.request_cancel("t", "batch_1", after(1))
    assert not await any_database.batches.set_max_cost("t", "batch_1", "3")


async def test_a_cap_that_a_batch_has_reached_cannot_be_changed(any_database: Database) -> None:
    batches, progress = any_database.batches, any_database.progress
    await started(any_database, max_cost="2.5")
    assert not await progress.reach_cap(KEY, amount_of("2.499999999999"))
    assert await batches.set_max_cost("t", "batch_1", "3")
    assert not await progress.reach_cap(KEY, amount_of("2.5"))  # it was raised
    assert not await progress.reach_cap(BatchKey("u", "batch_1"), amount_of("3"))
    assert (await progress.spending({KEY: []}))[KEY] == BatchSpending(amount_of("3"), 0)
    for _ in range(2):
        assert await progress.reach_cap(KEY, amount_of("3"))
    assert (await progress.spending({KEY: []}))[KEY] == BatchSpending(amount_of("3"), 0, is_ending=True)
    assert not await batches.set_max_cost("t", "batch_1", "9")
    assert not await batches.set_max_cost("t", "batch_1", None)
    row = await batches.get("t", "batch_1")
    assert row is not None
    assert row.cap_reached_at is not None
    await started(any_database, "batch_2")
    assert not await progress.reach_cap(BatchKey("t", "batch_2"), amount_of("99"))  # it has no cap
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(output=None, error=None), after(5))
    assert not await progress.reach_cap(KEY, amount_of("99"))


async def test_the_output_of_earlier_batches_is_known_by_model_endpoint_and_tenant(
    any_database: Database,
) -> None:
    for id, tenant in (("batch_1", "t"), ("batch_2", "t"), ("batch_3", "u")):
        await started(any_database, id, tenant)
        await any_database.batch_ends.finish(tenant, id, an_outcome(output=None, error=None), after(5))
    history = any_database.batch_list.output_history
    assert await history("t", Endpoint.CHAT_COMPLETIONS, ["a", "b"]) == {"a": OutputHistory(16, 14)}
    assert await history("t", Endpoint.EMBEDDINGS, ["a"]) == {}
    assert await history("t", Endpoint.CHAT_COMPLETIONS, ["b"]) == {}
