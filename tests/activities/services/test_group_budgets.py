"""Budgets of users and teams, whose keys use them together."""

import json

from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import BudgetGroup
from batchwright.rules.tenants.scopes import Scope
from tests.activities.execution.fixture import TENANT, request
from tests.activities.services.budgeted_worker import DAY, KEY, BudgetedWorker, Clock, an_organization
from tests.fakes.budget_groups import team, user
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START

ALICE, BOB = user(TENANT, "alice"), user(TENANT, "bob")


async def a_group(
    database: MemoryDatabase, group: BudgetGroup, tokens_per_day: int | None, *keys: str
) -> None:
    await database.tenants.create(TENANT, START)
    await database.budget_groups.create(group, tokens_per_day, START)
    for key in keys:
        row = ApiKeyRow(id=key, tenant=TENANT, prefix=key, scopes=[Scope.WRITE], created_at=START)
        await database.api_keys.insert(row, SecretHash(b"", b""))
    await database.budget_groups.add(group, keys)


async def test_all_keys_of_a_user_share_its_budget_and_no_other_key_does() -> None:
    database = MemoryDatabase()
    await a_group(database, ALICE, 17, KEY, "key_2")
    await a_group(database, BOB, 1000, "key_3")
    await a_group(database, user(TENANT, "idle"), 1)
    spent = [DailyUsage(TENANT, "key_2", 7), DailyUsage(TENANT, "key_3", 90), DailyUsage(TENANT, "", 90)]
    await database.quotas.publish_usage("b", Clock().today, [*spent, DailyUsage("other", KEY, 90)])
    worker = BudgetedWorker(database, "a", model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request(caller=Caller(key_id=KEY))) == (2, 2)  # beside the 7 of its other key
    assert json.loads((await worker.execution.settled())[offsets[3]].payload)["error"] == {
        "code": "policy_rejected",
        "message": "The budget of 17 tokens a day of the user alice is used up; it resets at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.execution.counted("batchwright_quota_refusals_total", **refused) == 2
    assert worker.refusal(TENANT, "key_2")
    for tenant, key in ((TENANT, "key_3"), (TENANT, ""), (TENANT, "key_9"), ("other", KEY)):
        assert worker.refusal(tenant, key) == ""


async def test_a_key_moved_to_another_user_takes_its_usage_of_today_along_on_every_worker() -> None:
    database = MemoryDatabase()
    await a_group(database, ALICE, 10, KEY)
    await a_group(database, BOB, 10, "key_2")
    worker, other = BudgetedWorker(database, "a"), BudgetedWorker(database, "b")
    worker.budgets.record(TENANT, KEY, 10)
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.refusal(TENANT, KEY)
        assert looking.refusal(TENANT, "key_2") == ""
    await database.budget_groups.add(BOB, [KEY])
    await database.budget_groups.add(ALICE, ["key_2"])
    for looking in (worker, other):
        await looking.known.refresh()
        assert "user bob" in looking.refusal(TENANT, KEY)
        assert looking.refusal(TENANT, "key_2") == ""
    await database.budget_groups.delete(BOB)
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.refusal(TENANT, KEY) == ""
    await database.budget_groups.delete(ALICE)
    await worker.known.refresh()
    assert worker.known.version is not None  # nobody has a budget any more


async def test_a_revoked_key_still_counts_for_its_user_and_usage_starts_at_zero_each_day() -> None:
    database = MemoryDatabase()
    await a_group(database, ALICE, 10, KEY, "key_2")
    worker = BudgetedWorker(database, "a")
    worker.budgets.record(TENANT, KEY, 10)
    await database.api_keys.revoke(KEY, START)
    await worker.known.refresh()
    assert worker.refusal(TENANT, "key_2")
    worker.clock.now += DAY
    assert worker.refusal(TENANT, "key_2") == ""
    worker.budgets.record(TENANT, "key_2", 10)
    assert worker.refusal(TENANT, KEY)


async def test_the_budgets_of_the_user_and_the_organization_both_apply() -> None:
    database = MemoryDatabase()
    await a_group(database, ALICE, 10, KEY)
    await an_organization(database, 30, TENANT)
    worker = BudgetedWorker(database, "a")
    await worker.known.refresh()
    worker.budgets.record(TENANT, KEY, 10)
    assert "user alice" in worker.refusal(TENANT, KEY)
    assert worker.refusal(TENANT, "") == ""
    worker.budgets.record(TENANT, "", 20)
    assert "organization group" in worker.refusal(TENANT, "")
    await database.budget_groups.limit(ALICE, tokens_per_day=0)
    await worker.known.refresh()
    assert "organization group" in worker.refusal(TENANT, KEY)


async def test_a_key_counts_for_both_its_team_and_its_user() -> None:
    database, search = MemoryDatabase(), team(TENANT, "search")
    await a_group(database, ALICE, 10, KEY)
    await a_group(database, search, 15, "key_2")
    await database.budget_groups.add(search, [KEY])
    worker = BudgetedWorker(database, "a")
    await worker.known.refresh()
    worker.budgets.record(TENANT, KEY, 10)
    assert "user alice" in worker.refusal(TENANT, KEY)
    assert worker.refusal(TENANT, "key_2") == ""
    worker.budgets.record(TENANT, "key_2", 5)
    assert "the team search" in worker.refusal(TENANT, "key_2")
    await database.budget_groups.delete(ALICE)
    await worker.known.refresh()
    assert "the team search" in worker.refusal(TENANT, KEY)
