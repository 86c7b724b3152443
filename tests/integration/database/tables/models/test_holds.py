"""Holds of tenants and models.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import pytest

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import HoldKind
from batchwright.database.database import Database
from batchwright.database.records import Hold
from tests.integration.database.rows import after, an_order


async def two_batches(database: Database) -> None:
    """Create two batches in progress, of the tenants `red` and `blue`. Each has ten lines for each of two
    models.
    """
    for tenant, id in (("red", "batch_1"), ("blue", "batch_2")):
        await database.batches.upsert(an_order(id, tenant))
        models = [ModelCounts(model=name, lines=10) for name in ("a", "b")]
        await database.batches.start(tenant, id, total=20, models=models, at=after(10))


async def test_holds_are_listed_until_they_are_released(any_database: Database) -> None:
    holds = any_database.holds
    await holds.put(HoldKind.TENANT, "red", after(1))
    await holds.put(HoldKind.MODEL, "red", after(2))
    await holds.put(HoldKind.TENANT, "red", after(3))
    both = [Hold(HoldKind.MODEL, "red", after(2)), Hold(HoldKind.TENANT, "red", after(1))]
    assert await holds.all() == both
    for _ in range(2):
        await holds.remove(HoldKind.TENANT, "red")
        assert await holds.all() == both[:1]


@pytest.mark.parametrize(
    ("kind", "name", "left"),
    [
        (HoldKind.TENANT, "red", {("blue", "a"), ("blue", "b")}),
        (HoldKind.MODEL, "a", {("red", "b"), ("blue", "b")}),
    ],
)
async def test_held_lines_are_not_among_those_that_may_be_sent(
    any_database: Database, kind: HoldKind, name: str, left: set[tuple[str, str]]
) -> None:
    await two_batches(any_database)
    await any_database.holds.put(kind, name, after(20))
    now, fleet = after(30), any_database.fleet
    backlogs = {(each.tenant, each.model): each.held for each in await fleet.backlogs(now)}
    assert len(backlogs) == 4
    assert {key for key, held in backlogs.items() if held is None} == left
    assert set(backlogs.values()) == {kind, None}
    awaited = {(tenant, model) for model, of in (await fleet.awaited_models(now)).items() for tenant in of}
    assert awaited == left
    assert sum(due.lines for due in await fleet.lines_due(now)) == 20
    assert {(work.tenant, work.model) for work in await any_database.forecasts.work(now)} == left
    await any_database.holds.remove(kind, name)
    assert len(await any_database.forecasts.work(now)) == 4


async def test_a_hold_of_both_is_shown_as_that_of_the_tenant(any_database: Database) -> None:
    await two_batches(any_database)
    await any_database.holds.put(HoldKind.MODEL, "a", after(20))
    await any_database.holds.put(HoldKind.TENANT, "red", after(20))
    backlogs = {(each.tenant, each.model): each.held for each in await any_database.fleet.backlogs(after(30))}
    assert backlogs[("red", "a")] is HoldKind.TENANT
    assert backlogs[("blue", "a")] is HoldKind.MODEL
