"""Metrics of daily budgets: tenants and organizations by name; teams, users and keys only as counts."""

from datetime import UTC, date, datetime

from batchwright.contracts.terms import Quota
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.rules.token_costs import amount_of
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.control_tasks.budget_metrics import BudgetCollector
from tests.fakes.api_keys import create_key
from tests.fakes.budget_groups import organization, team, user
from tests.fakes.memory_database import MemoryDatabase

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TODAY = NOW.date()


class BudgetFixture:
    def __init__(self, *, default: int = 0, tenants: int = 20) -> None:
        self.database, self.metrics = MemoryDatabase(), Metrics(tenants=tenants)
        self.groups = self.database.budget_groups
        budget = DailyAmounts(default)
        self.budgets = BudgetCollector(self.database.quotas, self.groups, budget, self.metrics)

    async def spend(self, tenant: str, tokens: int, *, worker: str = "w", day: date = TODAY) -> None:
        await self.database.quotas.publish_usage(worker, day, [DailyUsage(tenant, "", tokens)])

    async def allow(self, tenant: str, tokens: int | None) -> None:
        await self.database.quotas.change(tenant, {"tokens_per_day": tokens}, NOW)

    def value(self, name: str, quota: Quota = Quota.TOKENS_PER_DAY, **labels: str) -> float | None:
        labels["quota"] = quota
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


async def test_the_usage_of_all_workers_today_is_shown_with_the_budget() -> None:
    budgets = BudgetFixture()
    await budgets.allow("acme", 1000)
    await budgets.spend("acme", 300, worker="one")
    await budgets.spend("acme", 400, worker="two")
    await budgets.spend("acme", 9000, day=date(2026, 2, 28))
    await budgets.budgets.refresh(NOW)
    assert budgets.value("tenant_budget", tenant="acme") == 1000
    assert budgets.value("tenant_budget_used", tenant="acme") == 700
    assert budgets.value("budgets_exhausted", of="tenant") == 0


async def test_a_tenant_without_its_own_budget_has_that_of_the_settings() -> None:
    budgets = BudgetFixture(default=100)
    await budgets.allow("free", 0)
    for tenant in ("free", "other"):
        await budgets.spend(tenant, 100)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("tenant_budget", tenant="other") == 100
    assert budgets.value("tenant_budget", tenant="free") is None
    assert budgets.value("budgets_exhausted", of="tenant") == 1


async def test_only_tenants_with_the_largest_used_share_have_a_label_and_all_are_counted() -> None:
    budgets = BudgetFixture(tenants=1)
    for tenant, budget in (("large", 10_000), ("small", 10), ("tiny", 5)):
        await budgets.allow(tenant, budget)
        await budgets.spend(tenant, 8)
    await budgets.budgets.refresh(NOW)
    named = [name for name in ("large", "small", "tiny") if budgets.value("tenant_budget_used", tenant=name)]
    assert named == ["tiny"]
    await budgets.allow("tiny", 8000)
    await budgets.spend("small", 10)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("tenant_budget_used", tenant="tiny") is None
    assert budgets.value("tenant_budget_used", tenant="small") == 10
    assert budgets.value("budgets_exhausted", of="tenant") == 1


async def test_a_removed_budget_leaves_no_series() -> None:
    budgets = BudgetFixture()
    await budgets.allow("acme", 10)
    await budgets.spend("acme", 10)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_exhausted", of="tenant") == 1
    await budgets.allow("acme", None)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_exhausted", of="tenant") == 0
    assert budgets.value("tenant_budget", tenant="acme") is None


async def test_an_organization_is_shown_with_the_usage_of_all_its_tenants() -> None:
    budgets = BudgetFixture(tenants=1)
    for name, budget, tenants in (
        ("group", 100, ["acme", "blue"]),
        ("idle", 100, []),
        ("free", None, ["red"]),
    ):
        await budgets.groups.create(organization(name), budget, NOW)
        await budgets.groups.add(organization(name), tenants)
    for tenant in ("acme", "blue", "red", "alone"):
        await budgets.spend(tenant, 50)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("organization_budget", organization="group") == 100
    assert budgets.value("organization_budget_used", organization="group") == 100
    assert budgets.value("organization_budget_used", organization="idle") is None  # as only one has a label
    assert budgets.value("organization_budget_used", organization="free") is None
    assert budgets.value("budgets_exhausted", of="organization") == 1
    await budgets.groups.delete(organization("group"))
    await budgets.budgets.refresh(NOW)
    assert budgets.value("organization_budget_used", organization="group") is None
    assert budgets.value("budgets_exhausted", of="organization") == 0


async def test_exhausted_keys_are_counted_but_not_named() -> None:
    budgets = BudgetFixture()
    keys = [await create_key(budgets.database, "acme") for _ in range(2)]
    _, key = [await budgets.database.api_keys.limit(key.prefix, tokens_per_day=50) for key in keys]
    assert key is not None
    await budgets.database.quotas.publish_usage("w", TODAY, [DailyUsage("acme", key.id, 50)])
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_exhausted", of="key") == 1
    assert budgets.value("budgets_short", of="key") == 1
    assert key.id not in budgets.metrics.render().decode()
    assert budgets.value("tenant_budget_used", tenant="acme") is None  # it has no budget


async def test_exhausted_users_and_teams_are_counted_but_not_named() -> None:
    budgets = BudgetFixture()
    groups, keys, quotas = budgets.groups, budgets.database.api_keys, budgets.database.quotas
    for name in ("alice", "alice", "bob"):
        await create_key(budgets.database, "acme", user=name)
    alice, bob, zebra = user("acme", "alice"), user("acme", "bob"), team("acme", "zebra")
    await groups.limit(alice, tokens_per_day=50)
    await groups.limit(bob, tokens_per_day=50)
    await groups.create(user("acme", "idle"), 1, NOW)
    await groups.create(zebra, 90, NOW)
    await groups.add(zebra, [key.id for key in await keys.all()])
    spent = [DailyUsage("acme", key.id, 30) for key in await keys.all()]
    await quotas.publish_usage("w", TODAY, spent)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_exhausted", of="user") == 1
    assert budgets.value("budgets_short", of="user") == 1
    assert budgets.value("budgets_exhausted", of="team") == 1
    shown = budgets.metrics.render().decode()
    assert "alice" not in shown
    assert "zebra" not in shown
    await groups.limit(alice, tokens_per_day=64)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_exhausted", of="user") == 0
    assert budgets.value("budgets_short", of="user") == 1
    await groups.delete(alice)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_short", of="user") == 0


async def test_budgets_count_as_short_before_they_are_exhausted() -> None:
    budgets = BudgetFixture()
    group = organization("group")
    await budgets.groups.create(group, 1000, NOW)
    for tenant, tokens in (("calm", 90), ("short", 91), ("gone", 100)):
        await budgets.allow(tenant, 100)
        await budgets.spend(tenant, tokens)
        await budgets.groups.add(group, [tenant])
    created = await create_key(budgets.database, "rich")
    key = await budgets.database.api_keys.limit(created.prefix, tokens_per_day=100)
    assert key is not None
    await budgets.database.quotas.publish_usage("w", TODAY, [DailyUsage("rich", key.id, 95)])
    await budgets.budgets.refresh(NOW)
    shown = [budgets.value("budgets_short", of=of) for of in ("tenant", "organization", "key")]
    assert shown == [2, 0, 1]
    assert budgets.value("budgets_exhausted", of="key") == 0
    await budgets.groups.limit(group, tokens_per_day=300)
    await budgets.budgets.refresh(NOW)
    assert budgets.value("budgets_short", of="organization") == 1


async def test_budgets_of_cost_are_shown_in_the_currency_beside_those_of_tokens() -> None:
    budgets = BudgetFixture()
    await budgets.database.quotas.change("acme", {"tokens_per_day": 1000, "cost_per_day": "2.5"}, NOW)
    await budgets.groups.create(organization("group"), None, NOW, cost_per_day="1")
    await budgets.groups.add(organization("group"), ["acme"])
    spent = DailyUsage("acme", "", 100, amount_of("2.4"))
    await budgets.database.quotas.publish_usage("w", TODAY, [spent])
    await budgets.budgets.refresh(NOW)
    assert budgets.value("tenant_budget", Quota.COST_PER_DAY, tenant="acme") == 2.5
    assert budgets.value("tenant_budget_used", Quota.COST_PER_DAY, tenant="acme") == 2.4
    assert budgets.value("tenant_budget_used", tenant="acme") == 100
    assert budgets.value("organization_budget", Quota.COST_PER_DAY, organization="group") == 1
    assert budgets.value("organization_budget", organization="group") is None
    shown = [
        budgets.value("budgets_short", quota, of="tenant") for quota in Quota if quota.endswith("per_day")
    ]
    assert shown == [0, 1]
    assert budgets.value("budgets_exhausted", Quota.COST_PER_DAY, of="organization") == 1
