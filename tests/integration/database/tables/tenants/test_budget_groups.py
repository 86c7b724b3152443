"""The table of budget groups (users, teams and organizations that share a budget).

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from batchwright.contracts.terms import GroupKind
from batchwright.database.database import Database
from batchwright.database.errors import InOtherOrganization, UnknownApiKey, UnknownBudgetGroup, UnknownTenant
from batchwright.database.records import ApiKeyRow, BudgetGroupRow
from batchwright.database.tables.tenants.budget_groups import GroupBudget
from batchwright.database.tables.tenants.daily_usage import UsageOfDay
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.budget_groups import organization, team, user
from tests.fakes.token_usage import publish_usage, this_day
from tests.integration.database.rows import START, after

GROUP, ANOTHER = organization("group"), organization("another")
ALICE, BOB, ALICE_OF_U = user("t", "alice"), user("t", "bob"), user("u", "alice")


async def a_key(database: Database, id: str, *groups: BudgetGroup, tenant: str = "t") -> ApiKeyRow:
    await database.tenants.create(tenant, START)
    row = ApiKeyRow(id=id, tenant=tenant, prefix=f"p{id}", scopes=[Scope.READ], created_at=START)
    await database.api_keys.insert(row, SecretHash(b"salt", b"hash"), groups)
    return row


async def two_users(database: Database) -> None:
    """Create users with keys: alice (a1, a2) and bob (b1) of tenant `t`, and alice (u1) of tenant `u`."""
    for group in (ALICE, ALICE_OF_U):
        await database.tenants.create(group.tenant, START)
        assert await database.budget_groups.create(group, 100, START)
    assert await database.budget_groups.create(BOB, None, after(1))
    for key in ("a1", "a2"):
        await a_key(database, key, ALICE)
    await a_key(database, "b1", BOB)
    await a_key(database, "u1", ALICE_OF_U, tenant="u")


async def keys_of(database: Database, tenant: str = "t") -> dict[str, list[str]]:
    return {row.name: row.members for row in await database.budget_groups.all(GroupKind.USER, tenant)}


async def test_tenants_of_an_organization_share_its_budget(any_database: Database) -> None:
    groups, quotas = any_database.budget_groups, any_database.quotas
    assert await groups.create(GROUP, 100, START)
    assert not await groups.create(GROUP, 5, after(1))
    assert await groups.create(ANOTHER, None, after(1))
    await groups.add(GROUP, ["u", "t", "t"])
    await groups.add(GROUP, ["t"])
    group = BudgetGroupRow(**GROUP._asdict(), created_at=START, tokens_per_day=100, members=["t", "u"])
    empty = BudgetGroupRow(**ANOTHER._asdict(), created_at=after(1), members=[])
    assert await groups.all() == [empty, group]
    assert await groups.limited() == [group]
    await publish_usage(
        quotas, "a", DailyUsage("t", "", 10), DailyUsage("t", "key", 5), DailyUsage("v", "", 7)
    )
    await publish_usage(quotas, "b", DailyUsage("u", "", 20))
    await quotas.publish_usage("b", this_day() - timedelta(days=1), [DailyUsage("u", "", 1000)])
    for tenant in ("t", "u"):
        assert await groups.budgets_of(tenant) == [GroupBudget(GROUP, DailyAmounts(100), DailyAmounts(35))]
    assert await groups.budgets_of("v") == []


async def test_an_organization_is_changed_and_deleted_and_its_tenants_stay(any_database: Database) -> None:
    groups, quotas, none = any_database.budget_groups, any_database.quotas, organization("none")
    await groups.create(GROUP, None, START)
    await quotas.change("t", {"tokens_per_day": 9}, START)
    await groups.add(GROUP, ["t", "u"])
    await groups.limit(GROUP, tokens_per_day=50)
    assert await groups.budgets_of("t") == [GroupBudget(GROUP, DailyAmounts(50), DailyAmounts())]
    assert await groups.remove(GROUP, ["u", "v"]) == {"u"}
    assert await groups.remove(GROUP, ["u"]) == set()
    [row] = await groups.all()
    assert (row.tokens_per_day, row.members) == (50, ["t"])
    await groups.limit(GROUP, tokens_per_day=0)
    assert await groups.budgets_of("t") == [GroupBudget(GROUP, DailyAmounts(), DailyAmounts())]
    await quotas.clear("t")  # its own quotas go, where it belongs to stays
    assert await groups.budgets_of("t") != []
    await groups.delete(GROUP)
    assert (await groups.all(), await groups.budgets_of("t")) == ([], [])
    for change in (
        groups.delete(GROUP),
        groups.limit(none, tokens_per_day=50),
        groups.add(none, ["t"]),
        groups.remove(none, ["t"]),
    ):
        with pytest.raises(UnknownBudgetGroup):
            await change


async def test_a_tenant_of_another_organization_is_refused_and_nothing_changes(
    any_database: Database,
) -> None:
    groups = any_database.budget_groups
    for group, tenants in ((GROUP, ["t"]), (ANOTHER, ["u"])):
        await groups.create(group, None, START)
        await groups.add(group, tenants)
    for only in (False, True):
        with pytest.raises(InOtherOrganization) as refused:
            await groups.add(ANOTHER, ["v", "t"], only=only)
        assert (refused.value.tenant, refused.value.organization) == ("t", "group")
    assert [row.members for row in await groups.all()] == [["u"], ["t"]]
    await groups.add(ANOTHER, ["v"], only=True)
    assert [row.members for row in await groups.all()] == [["v"], ["t"]]


async def test_of_organizations_that_add_one_tenant_concurrently_one_succeeds(any_database: Database) -> None:
    groups = any_database.budget_groups
    for group in (GROUP, ANOTHER):
        await groups.create(group, None, START)
    ended = await asyncio.gather(groups.add(GROUP, ["t"]), groups.add(ANOTHER, ["t"]), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ended) == ["InOtherOrganization", "NoneType"]
    assert sorted(len(row.members) for row in await groups.all()) == [0, 1]


async def test_a_user_is_created_once_and_listed_with_its_keys(any_database: Database) -> None:
    await two_users(any_database)
    groups = any_database.budget_groups
    assert not await groups.create(ALICE, 5, after(1))
    of_t = [
        BudgetGroupRow(**ALICE._asdict(), created_at=START, tokens_per_day=100, members=["a1", "a2"]),
        BudgetGroupRow(**BOB._asdict(), created_at=after(1), members=["b1"]),
    ]
    of_u = BudgetGroupRow(**ALICE_OF_U._asdict(), created_at=START, tokens_per_day=100, members=["u1"])
    assert await groups.all(tenant="t") == of_t
    assert await groups.all() == await groups.all(GroupKind.USER) == [*of_t, of_u]
    assert await groups.all(tenant="v") == await groups.all(GroupKind.TEAM) == []
    assert sorted(await groups.limited(), key=lambda row: row.tenant) == [of_t[0], of_u]


async def test_a_user_of_an_unknown_tenant_is_refused(any_database: Database) -> None:
    with pytest.raises(UnknownTenant):
        await any_database.budget_groups.create(ALICE, None, START)


async def test_a_key_belongs_to_a_team_and_a_user_and_its_tenant_to_an_organization(
    any_database: Database,
) -> None:
    await two_users(any_database)
    groups, search, ads = any_database.budget_groups, team("t", "search"), team("t", "ads")
    for group, members in ((GROUP, ["t"]), (search, ["a1", "b1"]), (ads, ["b1"])):
        await groups.create(group, 1000, START)
        await groups.add(group, members)
    await publish_usage(
        any_database.quotas,
        "w",
        DailyUsage("t", "a1", 10),
        DailyUsage("t", "b1", 7),
        DailyUsage("u", "a1", 90),
    )
    assert await groups.budgets_of("t", "a1") == [
        GroupBudget(GROUP, DailyAmounts(1000), DailyAmounts(17)),
        GroupBudget(search, DailyAmounts(1000), DailyAmounts(10)),
        GroupBudget(ALICE, DailyAmounts(100), DailyAmounts(10)),
    ]
    assert [budget.group for budget in await groups.budgets_of("t", "b1")] == [GROUP, ads, BOB]
    assert await keys_of(any_database) == {"alice": ["a1", "a2"], "bob": ["b1"]}


async def test_keys_of_a_user_share_its_usage_and_no_other_user_or_tenant_does(
    any_database: Database,
) -> None:
    await two_users(any_database)
    await a_key(any_database, "n1")
    groups, quotas = any_database.budget_groups, any_database.quotas
    await publish_usage(
        quotas, "w", DailyUsage("t", "a1", 10), DailyUsage("t", "b1", 7), DailyUsage("t", "n1", 90)
    )
    await publish_usage(
        quotas, "x", DailyUsage("t", "a1", 3), DailyUsage("t", "a2", 20), DailyUsage("u", "u1", 50)
    )
    await quotas.publish_usage("x", this_day() - timedelta(days=1), [DailyUsage("t", "a1", 1000)])
    for key in ("a1", "a2"):
        assert await groups.budgets_of("t", key) == [GroupBudget(ALICE, DailyAmounts(100), DailyAmounts(33))]
    assert await groups.budgets_of("t", "b1") == [GroupBudget(BOB, DailyAmounts(), DailyAmounts(7))]
    assert await groups.budgets_of("u", "u1") == [
        GroupBudget(ALICE_OF_U, DailyAmounts(100), DailyAmounts(50))
    ]
    for tenant, key in (("t", "n1"), ("u", "a1"), ("t", "u1"), ("t", "none")):
        assert await groups.budgets_of(tenant, key) == []
    usage = UsageOfDay(await quotas.daily_usage(this_day()))
    assert [(row.tenant, row.name, usage.of_group(row).tokens) for row in await groups.all()] == [
        ("t", "alice", 33),
        ("t", "bob", 7),
        ("u", "alice", 50),
    ]


async def test_a_key_moved_to_another_user_takes_its_usage_of_today_along(
    any_database: Database,
) -> None:
    await two_users(any_database)
    groups, quotas = any_database.budget_groups, any_database.quotas
    await publish_usage(
        quotas, "w", DailyUsage("t", "a1", 10), DailyUsage("t", "a2", 20), DailyUsage("t", "b1", 7)
    )
    await groups.add(BOB, ["a1"])
    assert await groups.budgets_of("t", "a1") == [GroupBudget(BOB, DailyAmounts(), DailyAmounts(17))]
    assert await groups.budgets_of("t", "a2") == [GroupBudget(ALICE, DailyAmounts(100), DailyAmounts(20))]
    assert await groups.remove(ALICE, ["a2", "b1"]) == {"a2"}
    assert await groups.budgets_of("t", "a2") == []
    assert await keys_of(any_database) == {"alice": [], "bob": ["a1", "b1"]}


async def test_a_revoked_key_still_counts_for_its_user(any_database: Database) -> None:
    await two_users(any_database)
    await publish_usage(any_database.quotas, "w", DailyUsage("t", "a1", 10), DailyUsage("t", "a2", 20))
    await any_database.api_keys.revoke("a1", after(2))
    assert await any_database.budget_groups.budgets_of("t", "a2") == [
        GroupBudget(ALICE, DailyAmounts(100), DailyAmounts(30))
    ]
    assert (await keys_of(any_database))["alice"] == ["a1", "a2"]


async def test_a_user_that_does_not_exist_in_the_tenant_of_the_key_is_refused_and_nothing_changes(
    any_database: Database,
) -> None:
    await two_users(any_database)
    await any_database.budget_groups.create(user("u", "carol"), None, START)
    for name in ("carol", "nobody", ""):
        with pytest.raises(UnknownBudgetGroup) as refused:
            await any_database.budget_groups.add(user("t", name), ["a1"])
        assert refused.value.group == user("t", name)
        with pytest.raises(UnknownBudgetGroup):
            await a_key(any_database, "new", ALICE, user("t", name))
    row = ApiKeyRow(id="new", tenant="v", prefix="new", scopes=[Scope.READ], created_at=START)
    with pytest.raises(UnknownTenant):
        await any_database.api_keys.insert(row, SecretHash(b"salt", b"hash"))
    assert await keys_of(any_database) == {"alice": ["a1", "a2"], "bob": ["b1"]}
    assert [row.id for row in await any_database.api_keys.all("t")] == ["a1", "a2", "b1"]


async def test_a_user_can_be_given_exactly_the_named_keys_of_its_tenant(any_database: Database) -> None:
    await two_users(any_database)
    await any_database.budget_groups.add(BOB, ["a1", "b1", "a1"], only=True)
    assert await keys_of(any_database) == {"alice": ["a2"], "bob": ["a1", "b1"]}
    assert await keys_of(any_database, "u") == {"alice": ["u1"]}
    await any_database.budget_groups.add(BOB, ["a2"], only=True)
    assert await keys_of(any_database) == {"alice": [], "bob": ["a2"]}
    for group, key in ((user("t", "nobody"), "a1"), (BOB, "u1"), (BOB, "none")):
        with pytest.raises((UnknownBudgetGroup, UnknownApiKey)):
            await any_database.budget_groups.add(group, ["a1", key], only=True)
    assert await keys_of(any_database) == {"alice": [], "bob": ["a2"]}


async def test_a_user_is_limited_and_deleted_and_its_keys_stay(any_database: Database) -> None:
    await two_users(any_database)
    groups = any_database.budget_groups
    await groups.limit(BOB, tokens_per_day=50)
    with pytest.raises(UnknownBudgetGroup):
        await groups.limit(user("u", "bob"), tokens_per_day=50)
    assert await groups.budgets_of("t", "b1") == [GroupBudget(BOB, DailyAmounts(50), DailyAmounts())]
    await groups.limit(ALICE, tokens_per_day=0)
    assert ALICE not in [row.group for row in await groups.limited()]
    await groups.delete(ALICE)
    with pytest.raises(UnknownBudgetGroup):
        await groups.delete(ALICE)
    assert [row.id for row in await any_database.api_keys.all("t")] == ["a1", "a2", "b1"]
    assert await keys_of(any_database, "u") == {"alice": ["u1"]}
    assert await groups.create(ALICE, 5, after(3))
    assert (await keys_of(any_database))["alice"] == []


async def test_a_user_deleted_while_it_gets_keys_leaves_no_membership_behind(
    any_database: Database,
) -> None:
    await two_users(any_database)

    async def give(key: str) -> None:
        with suppress(UnknownBudgetGroup):
            await any_database.budget_groups.add(BOB, [key])

    await asyncio.gather(give("a1"), any_database.budget_groups.delete(BOB), give("a2"))
    assert "bob" not in await keys_of(any_database)
    for key in ("a1", "a2", "b1"):
        assert {budget.group for budget in await any_database.budget_groups.budgets_of("t", key)} <= {ALICE}


async def test_users_that_take_keys_from_each_other_concurrently_do_not_deadlock(
    any_database: Database,
) -> None:
    await two_users(any_database)
    names = [f"k{number}" for number in range(6)]
    for name in names:
        await a_key(any_database, name)
    groups = any_database.budget_groups
    for _ in range(10):
        for group, own in ((ALICE, names[:3]), (BOB, names[3:])):
            await groups.add(group, own, only=True)
        await asyncio.gather(
            groups.add(ALICE, names[3:], only=True),
            groups.add(BOB, names[:3], only=True),
            groups.add(BOB, ["k0"]),
        )
        found = await keys_of(any_database)
        assert sorted(found["alice"] + found["bob"]) == names


async def test_a_group_has_a_budget_of_cost_beside_that_of_tokens(any_database: Database) -> None:
    groups, quotas = any_database.budget_groups, any_database.quotas
    await groups.create(GROUP, None, START, cost_per_day="12.345678")
    await groups.add(GROUP, ["t", "u"])
    [row] = await groups.limited()
    assert (row.tokens_per_day, row.cost_per_day) == (None, "12.345678")
    await publish_usage(quotas, "a", DailyUsage("t", "", 10, 1), DailyUsage("u", "key", 5, 10**21))
    expected = GroupBudget(GROUP, DailyAmounts(0, 12_345678 * 10**6), DailyAmounts(15, 10**21 + 1))
    assert await groups.budgets_of("t") == [expected]
    await groups.limit(GROUP, tokens_per_day=7)
    [row] = await groups.all()
    assert (row.tokens_per_day, row.cost_per_day) == (7, "12.345678")
    await groups.limit(GROUP, cost_per_day="0")
    [row] = await groups.all()
    assert (row.tokens_per_day, row.cost_per_day) == (7, None)
