"""Budgets of users: what the keys of one have used together, whoever has them now."""

import json

from batchwright.contracts.batch import Caller
from batchwright.database.quotas_base import Spent
from batchwright.database.tenant_rows import KeyRow
from batchwright.rules.api_keys import Kept, Scope
from tests.activities.budgeted import DAY, KEY, Clock, Worker, an_organization
from tests.activities.execution_house import TENANT, request
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import START


async def a_user(database: MemoryDatabase, name: str, tokens_per_day: int | None, *keys: str) -> None:
    await database.tenants.create(TENANT, START)
    await database.users.create(TENANT, name, tokens_per_day, START)
    for key in keys:
        row = KeyRow(
            id=key, tenant=TENANT, prefix=key, scopes=[Scope.WRITE], created_at=START, user_name=name
        )
        await database.api_keys.insert(row, Kept(b"", b""))


async def test_the_budget_of_a_user_holds_for_all_its_keys_together_and_for_no_other() -> None:
    database = MemoryDatabase()
    await a_user(database, "alice", 17, KEY, "key_2")
    await a_user(database, "bob", 1000, "key_3")
    await a_user(database, "idle", 1)
    spent = [Spent(TENANT, "key_2", 7), Spent(TENANT, "key_3", 90), Spent(TENANT, "", 90)]
    await database.quotas.tell_spent("b", Clock().today, [*spent, Spent("other", KEY, 90)])
    worker = Worker(database, "a", model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request(caller=Caller(key_id=KEY))) == (2, 2)  # beside the 7 of its other key
    assert json.loads((await worker.house.settled())[offsets[3]].payload)["error"] == {
        "code": "policy_rejected",
        "message": "The budget of 17 tokens a day of the user alice is used up; it begins anew at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.house.counted("batchwright_quota_refusals_total", **refused) == 2
    assert worker.known.exhausted(TENANT, "key_2")
    for tenant, key in ((TENANT, "key_3"), (TENANT, ""), (TENANT, "key_9"), ("other", KEY)):
        assert worker.known.exhausted(tenant, key) == ""


async def test_a_key_given_to_another_user_takes_what_it_used_today_along_on_every_worker() -> None:
    database = MemoryDatabase()
    await a_user(database, "alice", 10, KEY)
    await a_user(database, "bob", 10, "key_2")
    worker, other = Worker(database, "a"), Worker(database, "b")
    worker.budgets.spend(TENANT, KEY, 10)
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.known.exhausted(TENANT, KEY)
        assert looking.known.exhausted(TENANT, "key_2") == ""
    await database.api_keys.give(KEY, "bob")
    await database.api_keys.give("key_2", "alice")
    for looking in (worker, other):
        await looking.known.refresh()
        assert "user bob" in looking.known.exhausted(TENANT, KEY)
        assert looking.known.exhausted(TENANT, "key_2") == ""
    await database.users.delete(TENANT, "bob")
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.known.exhausted(TENANT, KEY) == ""
    await database.users.delete(TENANT, "alice")
    await worker.known.refresh()
    assert worker.known.edition is not None  # nobody has a budget any more


async def test_a_revoked_key_is_its_users_still_and_the_next_day_begins_anew() -> None:
    database = MemoryDatabase()
    await a_user(database, "alice", 10, KEY, "key_2")
    worker = Worker(database, "a")
    worker.budgets.spend(TENANT, KEY, 10)
    await database.api_keys.revoke(KEY, START)
    await worker.known.refresh()
    assert worker.known.exhausted(TENANT, "key_2")
    worker.clock.now += DAY
    assert worker.known.exhausted(TENANT, "key_2") == ""
    worker.budgets.spend(TENANT, "key_2", 10)
    assert worker.known.exhausted(TENANT, KEY)


async def test_a_user_and_an_organization_are_both_asked() -> None:
    database = MemoryDatabase()
    await a_user(database, "alice", 10, KEY)
    await an_organization(database, 30, TENANT)
    worker = Worker(database, "a")
    await worker.known.refresh()
    worker.budgets.spend(TENANT, KEY, 10)
    assert "user alice" in worker.known.exhausted(TENANT, KEY)
    assert worker.known.exhausted(TENANT, "") == ""
    worker.budgets.spend(TENANT, "", 20)
    assert "organization group" in worker.known.exhausted(TENANT, "")
    await database.users.limit(TENANT, "alice", None)
    await worker.known.refresh()
    assert "organization group" in worker.known.exhausted(TENANT, KEY)
