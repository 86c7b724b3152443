"""Daily budgets: only lines beyond a budget are rejected, whichever worker has used up the budget."""

import asyncio
import json

import httpx
import pytest

from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.activities.services.send_authorization import CachedPermissions
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.rules.tenants.scopes import Scope
from tests.activities.execution.backend_jobs.job_server import JobServer, config_of, done
from tests.activities.execution.fixture import TENANT, eventually, ok, request
from tests.activities.services.budgeted_worker import (
    A_LINE,
    DAY,
    GROUP,
    KEY,
    WINDOW,
    BudgetedWorker,
    Clock,
    an_organization,
)
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START

PRICES = PriceConfig(currency="EUR", input="1000000", request="0.5")  # a line of `ok` costs 3.5


async def a_key(database: MemoryDatabase, **budget: object) -> None:
    await database.tenants.create(TENANT, START)
    row = ApiKeyRow(id=KEY, tenant=TENANT, prefix="abc", scopes=[Scope.WRITE], created_at=START)
    await database.api_keys.insert(row.model_copy(update=budget), SecretHash(b"", b""))


async def test_lines_above_the_budget_are_rejected_and_earlier_results_are_kept() -> None:
    worker = BudgetedWorker(MemoryDatabase(), "a", budget=12, model_in_flight=1)
    offsets = await worker.plan(6)
    assert await worker.counts(request()) == (3, 3)  # the third passes the limit, it was not used up before
    assert worker.execution.sent == ["0", "1", "2"]
    records = await worker.execution.settled()
    assert [records[offset].success for offset in offsets] == [True] * 3 + [False] * 3
    line = json.loads(records[offsets[3]].payload)
    assert (line["custom_id"], line["response"]) == ("c-3", None)
    assert line["error"] == {
        "code": "policy_rejected",
        "message": "Your budget of 12 tokens a day is used up; it resets at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.execution.counted("batchwright_quota_refusals_total", **refused) == 3


async def test_the_budget_of_a_tenant_overrides_the_setting_and_0_means_no_budget() -> None:
    database = MemoryDatabase()
    await database.quotas.change(TENANT, {"tokens_per_day": 5}, START)
    worker = BudgetedWorker(database, "a", budget=1000, model_in_flight=1)
    await worker.plan(3)
    assert await worker.counts(request()) == (1, 2)
    await database.quotas.change(TENANT, {"tokens_per_day": 0}, START)
    await worker.known.refresh()
    assert await worker.counts(request(batch_id="batch_" + "1" * 32)) == (3, 0)


async def test_the_budget_of_a_key_applies_only_to_its_batches() -> None:
    database = MemoryDatabase()
    await a_key(database, tokens_per_day=10)
    worker = BudgetedWorker(database, "a", model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request(caller=Caller(key_id=KEY))) == (2, 2)
    message = json.loads((await worker.execution.settled())[offsets[3]].payload)["error"]["message"]
    assert message.startswith(f"The budget of 10 tokens a day of the API key {KEY} is used up")
    other = request(batch_id="batch_" + "1" * 32, caller=Caller(key_id="key_2"))
    assert await worker.counts(other) == (4, 0)


async def test_the_tenants_of_an_organization_share_its_budget() -> None:
    database = MemoryDatabase()
    await an_organization(database, 17, TENANT, "other")
    await database.quotas.publish_usage(
        "b", Clock().today, [DailyUsage("other", "", 7), DailyUsage("stranger", "", 90)]
    )
    worker = BudgetedWorker(database, "a", budget=1000, model_in_flight=1)
    offsets = await worker.plan(4)
    assert await worker.counts(request()) == (2, 2)  # beside the 7 of another tenant elsewhere
    assert json.loads((await worker.execution.settled())[offsets[3]].payload)["error"] == {
        "code": "policy_rejected",
        "message": "The budget of 17 tokens a day of your organization group is used up; "
        "it resets at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "tokens_per_day"}
    assert worker.execution.counted("batchwright_quota_refusals_total", **refused) == 2
    assert worker.refusal("other", "")
    assert worker.refusal("stranger", "") == ""


async def test_joining_or_leaving_an_organization_moves_the_usage_of_today() -> None:
    database = MemoryDatabase()
    worker, other = BudgetedWorker(database, "a"), BudgetedWorker(database, "b")
    await an_organization(database, 10, TENANT)
    worker.budgets.record("rich", "", 10)
    for looking in (worker, other, worker):
        await looking.known.refresh()
    assert worker.refusal(TENANT, "") == ""
    await database.budget_groups.add(GROUP, ["rich"])
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.refusal(TENANT, "")
    await database.budget_groups.remove(GROUP, ["rich"])
    for looking in (worker, other):
        await looking.known.refresh()
        assert looking.refusal(TENANT, "") == ""
    assert worker.known.version is None
    await database.budget_groups.limit(GROUP, tokens_per_day=0)
    await worker.known.refresh()
    assert worker.known.version is not None  # nobody has a budget any more


async def test_the_usage_of_an_organization_starts_at_zero_each_day() -> None:
    database = MemoryDatabase()
    await an_organization(database, 10, TENANT, "other")
    worker = BudgetedWorker(database, "a")
    await worker.known.refresh()
    worker.budgets.record("other", "", 10)
    assert worker.refusal(TENANT, "")
    worker.clock.now += DAY
    assert worker.refusal(TENANT, "") == ""
    worker.budgets.record(TENANT, "", 10)
    assert worker.refusal("other", "")


async def test_the_usage_of_a_tenant_starts_at_zero_each_day() -> None:
    worker = BudgetedWorker(MemoryDatabase(), "a", budget=5, model_in_flight=1)
    await worker.plan(3)
    assert await worker.counts(request()) == (1, 2)
    worker.clock.now += DAY
    assert await worker.counts(request(batch_id="batch_" + "1" * 32)) == (1, 2)


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_several_workers_exceed_a_budget_at_most_by_requests_in_flight_and_answered_between_refreshes(
    in_flight: int,
) -> None:
    """Here all workers read the used amount before each response. Real workers read it every second."""
    database, fits = MemoryDatabase(), 20
    workers = [
        BudgetedWorker(database, name, fits * A_LINE, model_in_flight=in_flight) for name in ("a", "b", "c")
    ]

    async def refresh_and_answer(http_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        for worker in [*workers, *workers]:  # what each tells, then what each reads of the others
            await worker.known.refresh()
        return ok("")

    for worker in workers:
        worker.execution.answer = refresh_and_answer
        await worker.plan(40)
    counts = await asyncio.gather(*(worker.counts(request()) for worker in workers))
    answered = sum(completed for completed, _ in counts)
    between_looks = in_flight  # of each worker at most
    assert fits <= answered <= fits + len(workers) * (in_flight + between_looks)
    assert sum(failed for _, failed in counts) == 3 * 40 - answered


async def test_a_worker_stops_at_its_next_refresh_after_others_used_up_the_budget() -> None:
    database = MemoryDatabase()
    worker = BudgetedWorker(database, "a", budget=10, model_in_flight=1)
    await worker.plan(4)
    await database.quotas.publish_usage("b", worker.clock.today, [DailyUsage(TENANT, KEY, 10)])
    assert worker.refusal(TENANT, "") == ""
    await worker.known.refresh()
    assert await worker.counts(request()) == (0, 4)


async def test_usage_that_cannot_be_published_counts_locally_and_is_published_later() -> None:
    database = MemoryDatabase()
    worker, other = BudgetedWorker(database, "a", budget=10), BudgetedWorker(database, "b", budget=10)
    worker.budgets.record(TENANT, "", 10)
    database.rows.failing = DatabaseUnavailable("away")
    await worker.known.close()
    with pytest.raises(DatabaseUnavailable):
        await worker.known.refresh()
    assert worker.refusal(TENANT, "")
    database.rows.failing = None
    await worker.known.refresh()
    await other.known.refresh()
    assert other.refusal(TENANT, "")


async def test_usage_before_midnight_is_published_later_and_counts_for_its_own_day() -> None:
    database = MemoryDatabase()
    worker = BudgetedWorker(database, "a", budget=10)
    yesterday = worker.clock.today
    worker.budgets.record(TENANT, "", 10)
    worker.clock.now += DAY
    await worker.budgets.publish()
    assert await database.quotas.daily_usage(yesterday) == [DailyUsage(TENANT, "", 10)]
    assert await database.quotas.daily_usage(worker.clock.today) == []
    assert worker.refusal(TENANT, "") == ""


async def test_a_line_with_a_running_job_is_not_rejected_for_a_budget() -> None:
    server, database = JobServer(config_of()), MemoryDatabase()
    budgets = DailyBudgets(database.quotas, database.budget_groups, DailyAmounts(10))
    server.execution.context.permissions = CachedPermissions(
        database.quotas, budgets, BatchCosts(database.progress), WINDOW
    )
    await server.execution.context.permissions.refresh()
    await server.plan(2)
    running = server.execution.start(request())
    await eventually(lambda: len(server.polls) == 2)
    await server.die(running)
    budgets.record(TENANT, "", 10)
    server.every_status = done()
    assert (await server.execution.run(request())).completed == 2
    assert len(server.submits) == 2


async def test_lines_above_the_budget_of_cost_are_rejected_and_earlier_results_are_kept() -> None:
    worker = BudgetedWorker(MemoryDatabase(), "a", cost="7.000001", model_in_flight=1)
    offsets = await worker.plan(6)
    assert await worker.counts(request(prices=PRICES)) == (3, 3)
    line = json.loads((await worker.execution.settled())[offsets[3]].payload)
    assert line["error"] == {
        "code": "policy_rejected",
        "message": "Your budget of 7.000001 EUR a day is used up; it resets at 00:00 UTC.",
    }
    refused = {"tenant": TENANT, "quota": "cost_per_day"}
    assert worker.execution.counted("batchwright_quota_refusals_total", **refused) == 3
    assert await worker.counts(request(batch_id="batch_" + "1" * 32)) == (6, 0)  # of a model without prices
    worker.clock.now += DAY
    assert await worker.counts(request(batch_id="batch_" + "2" * 32, prices=PRICES)) == (3, 3)


async def test_a_budget_of_cost_counts_what_other_workers_have_published_and_no_digit_is_lost() -> None:
    database = MemoryDatabase()
    worker, other = (BudgetedWorker(database, name, cost="0.3") for name in ("a", "b"))
    for looking, tenth in ((worker, 1), (other, 1), (worker, 0)):
        looking.budgets.record(TENANT, "", 0, tenth * 10**11)
        await looking.known.refresh()
    assert worker.refusal(TENANT, "", "EUR") == ""
    worker.budgets.record(TENANT, "", 0, 10**11 - 1)
    assert worker.refusal(TENANT, "", "EUR") == ""
    worker.budgets.record(TENANT, "", 0, 1)
    assert worker.refusal(TENANT, "", "EUR").startswith("Your budget of 0.3 EUR a day is used up")
    assert worker.refusal(TENANT, "") == ""


async def test_keys_and_organizations_have_budgets_of_cost_beside_those_of_tokens() -> None:
    database = MemoryDatabase()
    await a_key(database, tokens_per_day=1000, cost_per_day="5")
    await database.budget_groups.create(GROUP, 1000, START, cost_per_day="9")
    await database.budget_groups.add(GROUP, [TENANT, "other"])
    await database.quotas.change(TENANT, {"cost_per_day": "0"}, START)  # no budget of its own
    worker = BudgetedWorker(database, "a", cost="1")
    await worker.known.refresh()
    worker.budgets.record(TENANT, KEY, 1, 5 * 10**12)
    assert worker.refusal(TENANT, KEY, "EUR").startswith(
        f"The budget of 5 EUR a day of the API key {KEY} is used up"
    )
    assert worker.refusal(TENANT, "", "EUR") == ""
    worker.budgets.record("other", "", 1, 4 * 10**12)
    assert worker.refusal(TENANT, "", "EUR").startswith(
        "The budget of 9 EUR a day of your organization group is used up"
    )
    worker.budgets.record(TENANT, KEY, 1000)
    assert "1000 tokens a day of the API key" in worker.refusal(TENANT, KEY, "EUR")
    await database.budget_groups.limit(GROUP, tokens_per_day=0, cost_per_day="0")
    await worker.known.refresh()
    assert worker.refusal(TENANT, "", "EUR") == ""
