"""Budgets of tokens a day: lines above one are refused alone, whoever used it up."""

import asyncio
import json

import httpx
import pytest

from activities.slices.budgets import TokenBudgets
from activities.slices.permissions import KnownPermissions
from batchwright.contracts.batch import Caller
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import Spent
from batchwright.database.tenant_rows import KeyRow
from batchwright.rules.api_keys import Kept, Scope
from tests.activities.budgeted import A_LINE, DAY, KEY, WINDOW, Clock, Worker, an_organization
from tests.activities.execution_house import TENANT, eventually, ok, request
from tests.activities.job_server import JobServer, config_of, done
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import START


async def a_key(database: MemoryDatabase, tokens_per_day: int) -> None:
    await database.tenants.create(TENANT, START)
    row = KeyRow(id=KEY, tenant=TENANT, prefix="abc", scopes=[Scope.WRITE], created_at=START)
    await database.api_keys.insert(row.model_copy(update={"tokens_per_day": tokens_per_day}), Kept(b"", b""))


async def test_lines_above_the_budget_are_refused_and_what_was_answered_stays() -> None:
    worker = Worker(MemoryDatabase(), "a", budget=12, model_in_flight=1)
    offsets = await worker.plan(6)
    assert await worker.counts(request()) == (3, 3)  # the third passes the limit, it was not used up before
    assert worker.house.sent == ["0", "1", "2"]
    records = await worker.house.settled()
    assert [records[offset].success for offset in offsets] == [True] * 3 + [False] * 3
    line = json.loads(records[offsets[3]].payload)
    assert (line["custom_id"], line["response"]) == ("c-3", None)
    assert line["error"] == {
        "code": "policy_rejected",
        "message": "Your budget of 12 tokens a day is used up; it begins anew at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.house.counted("batchwright_quota_refusals_total", **refused) == 3


async def test_a_tenants_own_budget_stands_before_the_setting_and_0_is_none() -> None:
    database = MemoryDatabase()
    await database.quotas.change(TENANT, {"tokens_per_day": 5}, START)
    worker = Worker(database, "a", budget=1000, model_in_flight=1)
    await worker.plan(3)
    assert await worker.counts(request()) == (1, 2)
    await database.quotas.change(TENANT, {"tokens_per_day": 0}, START)
    await worker.known.refresh()
    assert await worker.counts(request(batch_id="batch_" + "1" * 32)) == (3, 0)


async def test_the_budget_of_a_key_holds_for_its_batches_alone() -> None:
    database = MemoryDatabase()
    await a_key(database, 10)
    worker = Worker(database, "a", model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request(caller=Caller(key_id=KEY))) == (2, 2)
    message = json.loads((await worker.house.settled())[offsets[3]].payload)["error"]["message"]
    assert message.startswith(f"The budget of 10 tokens a day of the API key {KEY} is used up")
    other = request(batch_id="batch_" + "1" * 32, caller=Caller(key_id="key_2"))
    assert await worker.counts(other) == (4, 0)


async def test_the_budget_of_an_organization_holds_for_its_tenants_together() -> None:
    database = MemoryDatabase()
    await an_organization(database, 17, TENANT, "other")
    await database.quotas.tell_spent("b", Clock().today, [Spent("other", "", 7), Spent("stranger", "", 90)])
    worker = Worker(database, "a", budget=1000, model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request()) == (2, 2)  # beside the 7 of another tenant elsewhere
    assert json.loads((await worker.house.settled())[offsets[3]].payload)["error"] == {
        "code": "policy_rejected",
        "message": "The budget of 17 tokens a day of your organization group is used up; "
        "it begins anew at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.house.counted("batchwright_quota_refusals_total", **refused) == 2
    assert worker.known.exhausted("other", "")
    assert worker.known.exhausted("stranger", "") == ""


async def test_who_comes_to_an_organization_brings_what_it_used_today_and_takes_it_away_again() -> None:
    database = MemoryDatabase()
    worker, other = Worker(database, "a"), Worker(database, "b")
    await an_organization(database, 10, TENANT)
    worker.budgets.spend("rich", "", 10)
    for looking in (worker, other, worker):
        await looking.known.refresh()
    assert worker.known.exhausted(TENANT, "") == ""
    await database.organizations.add("group", "rich")
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.known.exhausted(TENANT, "")
    await database.organizations.remove("group", "rich")
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.known.exhausted(TENANT, "") == ""
    assert worker.known.edition is None
    await database.organizations.limit("group", None)
    await worker.known.refresh()
    assert worker.known.edition is not None  # nobody has a budget any more


async def test_what_an_organization_used_is_of_its_day() -> None:
    database = MemoryDatabase()
    await an_organization(database, 10, TENANT, "other")
    worker = Worker(database, "a")
    await worker.known.refresh()
    worker.budgets.spend("other", "", 10)
    assert worker.known.exhausted(TENANT, "")
    worker.clock.now += DAY
    assert worker.known.exhausted(TENANT, "") == ""
    worker.budgets.spend(TENANT, "", 10)
    assert worker.known.exhausted("other", "")


async def test_the_next_day_begins_anew() -> None:
    worker = Worker(MemoryDatabase(), "a", budget=5, model_in_flight=1)
    await worker.plan(3)
    assert await worker.counts(request()) == (1, 2)
    worker.clock.now += DAY
    assert await worker.counts(request(batch_id="batch_" + "1" * 32)) == (1, 2)


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_several_workers_pass_a_budget_by_no_more_than_was_in_flight_and_answered_between_looks(
    in_flight: int,
) -> None:
    """Here they all look before each answer; processes do each second."""
    database, fits = MemoryDatabase(), 20
    workers = [Worker(database, name, fits * A_LINE, model_in_flight=in_flight) for name in ("a", "b", "c")]

    async def look_and_answer(asked: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        for worker in [*workers, *workers]:  # what each tells, then what each reads of the others
            await worker.known.refresh()
        return ok("")

    for worker in workers:
        worker.house.answer = look_and_answer
        await worker.plan(40)
    counts = await asyncio.gather(*(worker.counts(request()) for worker in workers))
    answered = sum(completed for completed, _ in counts)
    between_looks = in_flight  # of each worker at most
    assert fits <= answered <= fits + len(workers) * (in_flight + between_looks)
    assert sum(failed for _, failed in counts) == 3 * 40 - answered


async def test_a_worker_that_has_not_looked_since_others_used_it_up_stops_at_its_next_look() -> None:
    database = MemoryDatabase()
    worker = Worker(database, "a", budget=10, model_in_flight=1)
    await worker.plan(4)
    await database.quotas.tell_spent("b", worker.clock.today, [Spent(TENANT, KEY, 10)])
    assert worker.known.exhausted(TENANT, "") == ""
    await worker.known.refresh()
    assert await worker.counts(request()) == (0, 4)


async def test_what_cannot_be_told_holds_here_and_is_told_later() -> None:
    database = MemoryDatabase()
    worker, other = Worker(database, "a", budget=10), Worker(database, "b", budget=10)
    worker.budgets.spend(TENANT, "", 10)
    database.rows.failing = DatabaseUnavailable("away")
    await worker.known.leave()
    with pytest.raises(DatabaseUnavailable):
        await worker.known.refresh()
    assert worker.known.exhausted(TENANT, "")
    database.rows.failing = None
    await worker.known.refresh()
    await other.known.refresh()
    assert other.known.exhausted(TENANT, "")


async def test_what_was_used_before_midnight_is_told_after_it_and_counts_for_its_day() -> None:
    database = MemoryDatabase()
    worker = Worker(database, "a", budget=10)
    yesterday = worker.clock.today
    worker.budgets.spend(TENANT, "", 10)
    worker.clock.now += DAY
    await worker.budgets.tell()
    assert await database.quotas.spent_by_others("", yesterday) == [Spent(TENANT, "", 10)]
    assert await database.quotas.spent_by_others("", worker.clock.today) == []
    assert worker.known.exhausted(TENANT, "") == ""


async def test_a_line_whose_job_runs_is_not_refused_for_a_budget() -> None:
    server, database = JobServer(config_of()), MemoryDatabase()
    budgets = TokenBudgets(database.quotas, 10)
    server.house.tools.permissions = KnownPermissions(database.quotas, budgets, WINDOW)
    await server.house.tools.permissions.refresh()
    await server.plan(2)
    running = server.house.start(request())
    await eventually(lambda: len(server.looks) == 2)
    await server.die(running)
    budgets.spend(TENANT, "", 10)
    server.says_all = done()
    assert (await server.house.run(request())).completed == 2
    assert len(server.submits) == 2
