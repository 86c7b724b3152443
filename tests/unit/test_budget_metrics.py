"""What a control worker shows of budgets of tokens: of tenants by name, of users and keys how many."""

from datetime import UTC, date, datetime

from batchwright.database.quotas_base import Spent
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from tests.fakes.keys import made_key
from worker.budgets import BudgetWatch

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TODAY = NOW.date()


class Watch:
    def __init__(self, *, default: int = 0, tenants: int = 20) -> None:
        self.database, self.metrics = MemoryDatabase(), Metrics(tenants=tenants)
        self.watch = BudgetWatch(self.database.quotas, default, self.metrics)

    async def spend(self, tenant: str, tokens: int, *, worker: str = "w", day: date = TODAY) -> None:
        await self.database.quotas.tell_spent(worker, day, [Spent(tenant, "", tokens)])

    async def allow(self, tenant: str, tokens: int | None) -> None:
        await self.database.quotas.change(tenant, {"tokens_per_day": tokens}, NOW)

    def shown(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


async def test_what_all_workers_have_used_today_is_shown_beside_the_budget() -> None:
    watch = Watch()
    await watch.allow("acme", 1000)
    await watch.spend("acme", 300, worker="one")
    await watch.spend("acme", 400, worker="two")
    await watch.spend("acme", 9000, day=date(2026, 2, 28))
    await watch.watch.look(NOW)
    assert watch.shown("tenant_token_budget", tenant="acme") == 1000
    assert watch.shown("tenant_tokens_used", tenant="acme") == 700
    assert watch.shown("token_budgets_exhausted", of="tenant") == 0


async def test_a_tenant_without_a_budget_of_its_own_has_that_of_the_settings() -> None:
    watch = Watch(default=100)
    await watch.allow("free", 0)
    for tenant in ("free", "other"):
        await watch.spend(tenant, 100)
    await watch.watch.look(NOW)
    assert watch.shown("tenant_token_budget", tenant="other") == 100
    assert watch.shown("tenant_token_budget", tenant="free") is None
    assert watch.shown("token_budgets_exhausted", of="tenant") == 1


async def test_only_tenants_that_have_used_the_largest_part_have_a_label_and_all_are_counted() -> None:
    watch = Watch(tenants=1)
    for tenant, budget in (("large", 10_000), ("small", 10), ("tiny", 5)):
        await watch.allow(tenant, budget)
        await watch.spend(tenant, 8)
    await watch.watch.look(NOW)
    named = [name for name in ("large", "small", "tiny") if watch.shown("tenant_tokens_used", tenant=name)]
    assert named == ["tiny"]
    await watch.allow("tiny", 8000)
    await watch.spend("small", 10)
    await watch.watch.look(NOW)
    assert watch.shown("tenant_tokens_used", tenant="tiny") is None
    assert watch.shown("tenant_tokens_used", tenant="small") == 10
    assert watch.shown("token_budgets_exhausted", of="tenant") == 1


async def test_a_budget_that_is_taken_away_leaves_no_series() -> None:
    watch = Watch()
    await watch.allow("acme", 10)
    await watch.spend("acme", 10)
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_exhausted", of="tenant") == 1
    await watch.allow("acme", None)
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_exhausted", of="tenant") == 0
    assert watch.shown("tenant_token_budget", tenant="acme") is None


async def test_an_organization_is_shown_with_what_all_its_tenants_have_used() -> None:
    watch = Watch(tenants=1)
    organizations = watch.database.organizations
    for name, budget in (("group", 100), ("idle", 100), ("free", None)):
        await organizations.create(name, budget, NOW)
    for name, tenant in (("group", "acme"), ("group", "blue"), ("free", "red")):
        await organizations.add(name, tenant)
    for tenant in ("acme", "blue", "red", "alone"):
        await watch.spend(tenant, 50)
    await watch.watch.look(NOW)
    assert watch.shown("organization_token_budget", organization="group") == 100
    assert watch.shown("organization_tokens_used", organization="group") == 100
    assert watch.shown("organization_tokens_used", organization="idle") is None  # as only one has a label
    assert watch.shown("organization_tokens_used", organization="free") is None
    assert watch.shown("token_budgets_exhausted", of="organization") == 1
    await organizations.delete("group")
    await watch.watch.look(NOW)
    assert watch.shown("organization_tokens_used", organization="group") is None
    assert watch.shown("token_budgets_exhausted", of="organization") == 0


async def test_of_keys_is_told_how_many_have_nothing_left_and_not_which() -> None:
    watch = Watch()
    keys = [await made_key(watch.database, "acme") for _ in range(2)]
    _, key = [await watch.database.api_keys.limit(key.prefix, 50) for key in keys]
    assert key is not None
    await watch.database.quotas.tell_spent("w", TODAY, [Spent("acme", key.id, 50)])
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_exhausted", of="key") == 1
    assert watch.shown("token_budgets_short", of="key") == 1
    assert key.id not in watch.metrics.shown().decode()
    assert watch.shown("tenant_tokens_used", tenant="acme") is None  # it has no budget


async def test_of_users_is_told_how_many_have_nothing_left_and_not_which() -> None:
    watch = Watch()
    users, keys, quotas = watch.database.users, watch.database.api_keys, watch.database.quotas
    for user in ("alice", "alice", "bob"):
        await made_key(watch.database, "acme", user=user)
    await users.limit("acme", "alice", 50)
    await users.limit("acme", "bob", 50)
    await users.create("acme", "idle", 1, NOW)
    spent = [Spent("acme", key.id, 30) for key in await keys.all()]
    await quotas.tell_spent("w", TODAY, spent)
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_exhausted", of="user") == 1
    assert watch.shown("token_budgets_short", of="user") == 1
    assert "alice" not in watch.metrics.shown().decode()
    await users.limit("acme", "alice", 64)
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_exhausted", of="user") == 0
    assert watch.shown("token_budgets_short", of="user") == 1
    await users.delete("acme", "alice")
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_short", of="user") == 0


async def test_budgets_are_short_before_they_are_used_up() -> None:
    watch = Watch()
    await watch.database.organizations.create("group", 1000, NOW)
    for tenant, tokens in (("calm", 90), ("short", 91), ("gone", 100)):
        await watch.allow(tenant, 100)
        await watch.spend(tenant, tokens)
        await watch.database.organizations.add("group", tenant)
    key = await watch.database.api_keys.limit((await made_key(watch.database, "rich")).prefix, 100)
    assert key is not None
    await watch.database.quotas.tell_spent("w", TODAY, [Spent("rich", key.id, 95)])
    await watch.watch.look(NOW)
    shown = [watch.shown("token_budgets_short", of=of) for of in ("tenant", "organization", "key")]
    assert shown == [2, 0, 1]
    assert watch.shown("token_budgets_exhausted", of="key") == 0
    await watch.database.organizations.limit("group", 300)
    await watch.watch.look(NOW)
    assert watch.shown("token_budgets_short", of="organization") == 1
