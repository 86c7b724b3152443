"""Weights and caps of tenants, which operators change while workers run."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings, part_of_cap
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, Caller, ModelCounts
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow, InteractiveRate
from batchwright.inference.limits.tenant_and_model_limits import FleetRate, Rates
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.scopes import Scope
from batchwright.rules.worker_stats import running_slice_stats
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START, an_order


async def beat(database: MemoryDatabase, worker: str, *batches: str) -> None:
    stats = running_slice_stats({(batch_id, "llama"): 1 for batch_id in batches})
    await database.workers.record_heartbeat(worker, stats)


async def test_a_tenant_without_a_weight_and_a_cap_has_the_weight_of_its_batches_and_no_cap() -> None:
    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    await shares.refresh()
    assert (shares.weights.get("blue", 2.5), shares.max_in_flight.get("blue")) == (2.5, None)


async def test_a_changed_weight_and_cap_hold_until_they_are_taken_back() -> None:
    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    await database.quotas.change("blue", {"weight": 4.0, "max_in_flight": 8}, START)
    await shares.refresh()
    assert (shares.weights.get("blue", 1), shares.max_in_flight.get("blue")) == (4.0, 8)
    await database.quotas.change("blue", {"weight": None}, START)
    await shares.refresh()
    assert (shares.weights.get("blue", 1), shares.max_in_flight.get("blue")) == (1, 8)
    await database.quotas.clear("blue")
    await shares.refresh()
    assert shares.max_in_flight.get("blue") is None


async def test_batches_are_ranked_by_the_lines_that_the_database_has() -> None:
    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    for name, lines in (("batch_large", 900), ("batch_small", 9)):
        order = an_order(name, created_at=datetime.now(UTC), deadline=datetime.now(UTC) + timedelta(hours=24))
        await database.batches.upsert(order)
        models = [ModelCounts(model="llama", lines=lines)]
        await database.batches.start("t", name, total=lines, models=models, at=datetime.now(UTC))
    await shares.refresh()
    ranks = shares.ranks("llama")
    assert ranks["batch_small"] < ranks["batch_large"]
    assert ranks.first == [("t", "batch_small")]


@pytest.mark.usefixtures("skipped_waits")
async def test_a_worker_that_starts_during_an_outage_waits_for_its_first_weights_and_caps() -> None:
    database = MemoryDatabase()
    await database.quotas.change("blue", {"max_in_flight": 8}, START)
    database.rows.failing = DatabaseUnavailable("no connection")
    shares = StoredTenantSettings(database, "own")
    running = asyncio.create_task(shares.run())
    waiting = asyncio.create_task(shares.wait_until_read())
    await asyncio.sleep(60)
    assert not waiting.done()
    database.rows.failing = None
    await waiting
    assert shares.max_in_flight.get("blue") == 8
    running.cancel()


async def test_workers_that_run_slices_of_a_tenant_divide_its_cap_and_others_take_nothing_of_it() -> None:
    database = MemoryDatabase()
    for tenant, id in (("blue", "batch_1"), ("red", "batch_2")):
        await database.batches.upsert(an_order(id, tenant))
    await database.quotas.change("blue", {"max_in_flight": 8}, START)
    workers = {name: StoredTenantSettings(database, name) for name in ("a", "b", "c")}
    for name in workers:
        await beat(database, name, "batch_1")
    await beat(database, "d", "batch_2")
    await beat(database, "e")
    for shares in workers.values():
        await shares.refresh()
    assert [shares.max_in_flight.get("blue") for shares in workers.values()] == [3, 3, 2]
    await beat(database, "c")
    await workers["a"].refresh()
    assert workers["a"].max_in_flight.get("blue") == 4


@pytest.mark.parametrize("seconds", [-600, -8, 8, 600])
async def test_workers_find_each_other_even_if_their_clocks_differ_from_the_databases(seconds: float) -> None:
    database = MemoryDatabase()
    database.rows.clock = lambda: datetime.now(UTC) + timedelta(seconds=seconds)
    await database.batches.upsert(an_order("batch_1", "blue"))
    await database.quotas.change("blue", {"max_in_flight": 8, "backend_requests_per_minute": 600}, START)
    for worker in ("own", "other"):
        await beat(database, worker, "batch_1")
    shares = StoredTenantSettings(database, "own")
    await shares.refresh()
    assert shares.max_in_flight.get("blue") == 4
    assert shares.rates["blue"] == Rates(FleetRate(600, 300.0))


async def test_interactive_calls_use_a_part_of_a_tenants_rates_and_leave_a_tenth_to_batches() -> None:
    database = MemoryDatabase()
    shares, limits = StoredTenantSettings(database, "own"), {"backend_requests_per_minute": 600}
    await database.quotas.change("blue", {**limits, "backend_tokens_per_minute": 5}, START)
    await beat(database, "own")
    of_model = InteractiveRate(False, "blue", 500.0, 5.0)  # of a model with the same name
    used = [InteractiveRate(True, "blue", 150.0, 1_000.0), of_model]
    await database.workers.report_interactive_rates("api:1", used)
    await shares.refresh()
    assert shares.rates["blue"] == Rates(FleetRate(600, 450.0), FleetRate(5, 1.0))


async def test_workers_that_run_slices_of_a_keys_batches_divide_its_cap() -> None:
    database = MemoryDatabase()
    key = ApiKeyRow(id="key_1", tenant="blue", prefix="abc", scopes=[Scope.READ], created_at=START)
    await database.tenants.create("blue", START)
    await database.api_keys.insert(key, SecretHash(b"", b""))
    of_key = BatchPolicy(caller=Caller(key_id="key_1"))
    await database.batches.upsert(an_order("batch_1", "blue", policy=of_key))
    await database.batches.upsert(an_order("batch_2", "blue"))
    shares = StoredTenantSettings(database, "own")
    await shares.refresh()
    assert shares.key_max_in_flight.get("key_1") is None
    await database.api_keys.limit("abc", max_in_flight=8)
    for worker, batch_id in (("own", "batch_1"), ("other", "batch_1"), ("third", "batch_2")):
        await beat(database, worker, batch_id)
    await shares.refresh()
    assert (shares.key_max_in_flight.get("key_1"), shares.max_in_flight.get("blue")) == (4, None)


@pytest.mark.parametrize(
    ("cap", "workers", "parts"),
    [
        (8, "a", [8]),
        (8, "ab", [4, 4]),
        (8, "abc", [3, 3, 2]),
        (2, "abc", [1, 1, 1]),
        (1, "a", [1]),
    ],
)
def test_the_parts_of_a_cap_add_up_to_it_unless_there_are_more_workers(
    cap: int, workers: str, parts: list[int]
) -> None:
    assert [part_of_cap(cap, [*workers], worker) for worker in workers] == parts


def test_a_worker_that_others_do_not_know_yet_counts_itself() -> None:
    assert part_of_cap(9, ["a", "b"], "new") == 3


@pytest.mark.usefixtures("skipped_waits")
async def test_the_last_weights_and_caps_hold_while_the_database_is_unavailable_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    await database.quotas.change("blue", {"weight": 4.0, "max_in_flight": 8}, START)
    running = asyncio.create_task(shares.run())
    await asyncio.sleep(10)
    database.rows.failing = DatabaseUnavailable("no connection")
    await asyncio.sleep(60)
    assert (shares.weights.get("blue", 1), shares.max_in_flight.get("blue")) == (4.0, 8)
    assert [record.message for record in caplog.records] == [
        "weights and caps cannot be read: the last known ones stay in effect"
    ]
    database.rows.failing = None
    await database.quotas.clear("blue")
    await asyncio.sleep(5)
    running.cancel()
    assert (shares.weights.get("blue", 1), shares.max_in_flight.get("blue")) == (1, None)


@pytest.mark.parametrize("failing", ["workers.interactive_rates", "holds.all", "fleet.backlogs"])
async def test_no_value_changes_if_the_database_fails_before_all_are_read(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: object) -> None:
        raise DatabaseUnavailable("no connection")

    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    await database.quotas.change("blue", {"weight": 4.0, "max_in_flight": 8}, START)
    await shares.refresh()
    await database.quotas.change("blue", {"weight": 2.0, "max_in_flight": 3}, START)
    table, method = failing.split(".")
    monkeypatch.setattr(getattr(database, table), method, fail)
    with pytest.raises(DatabaseUnavailable):
        await shares.refresh()
    assert (shares.weights, shares.max_in_flight) == ({"blue": 4.0}, {"blue": 8})
