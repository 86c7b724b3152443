"""/admin/budget-groups: create, change, list and delete groups; the remaining budget of a key's user."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.api.routes.admin.budget_groups import (
    BudgetGroupList,
    BudgetGroupObject,
    DeletedBudgetGroup,
)
from batchwright.contracts.api_objects.quotas import LimitsObject
from batchwright.contracts.terms import GroupKind, Quota
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.quotas import MAX_QUOTA
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.fakes.budget_groups import user
from tests.fakes.token_usage import publish_usage

PATH = "/admin/budget-groups"
ACME, OTHER = "organization/acme", "organization/other"
ALICE, BOB = "user/alice?tenant=blue", "user/bob?tenant=blue"


async def put(api: ApiFixture, group: str, **fields: object) -> httpx.Response:
    return await api.http.put(f"{PATH}/{group}", json=fields)


async def changed(api: ApiFixture, group: str, **fields: object) -> tuple[int | None, list[str]]:
    found = read(await put(api, group, **fields), BudgetGroupObject)
    return found.tokens_per_day, found.members


async def listed(api: ApiFixture, query: str = "") -> list[BudgetGroupObject]:
    return read(await api.http.get(PATH + query), BudgetGroupList).data


async def keys(api: ApiFixture, tenant: str, count: int) -> list[str]:
    """Create API keys and return their ids."""
    for _ in range(count):
        await create_key(api.database, tenant)
    return [row.id for row in await api.database.api_keys.all(tenant)]


async def test_an_organization_is_created_shown_with_the_usage_of_its_tenants_and_deleted() -> None:
    async with open_api() as api:
        spent = [DailyUsage("blue", "", 30), DailyUsage("red", "key", 5), DailyUsage("free", "", 900)]
        await publish_usage(api.database.quotas, "w", *spent)
        created = read(await put(api, ACME, tokens_per_day=90, members=["red", "blue"]), BudgetGroupObject)
        assert (created.kind, created.tenant, created.name) == (GroupKind.ORGANIZATION, None, "acme")
        assert (created.tokens_per_day, created.tokens_used, created.members) == (90, 35, ["blue", "red"])
        other = read(await put(api, "organization/zero"), BudgetGroupObject)
        assert (other.tokens_per_day, other.tokens_used, other.members) == (None, 0, [])
        assert await listed(api) == [created, other]
        assert read(await api.http.get(f"{PATH}/{ACME}"), BudgetGroupObject) == created
        assert read(await api.http.delete(f"{PATH}/{ACME}"), DeletedBudgetGroup).name == "acme"
        assert await listed(api) == [other]


@pytest.mark.parametrize("kind", [GroupKind.TEAM, GroupKind.USER])
async def test_a_team_or_user_is_created_shown_with_the_usage_of_its_keys_and_deleted(
    kind: GroupKind,
) -> None:
    async with open_api() as api:
        one, two, other = await keys(api, "blue", 3)
        spent = [
            DailyUsage("blue", one, 30),
            DailyUsage("blue", two, 5),
            DailyUsage("blue", other, 900),
            DailyUsage("blue", "", 7),
        ]
        await publish_usage(api.database.quotas, "w", *spent)
        path = f"{kind}/alice?tenant=blue"
        created = read(await put(api, path, tokens_per_day=90, members=[one, two]), BudgetGroupObject)
        assert (created.kind, created.tenant, created.name) == (kind, "blue", "alice")
        assert (created.tokens_per_day, created.tokens_used) == (90, 35)
        assert sorted(created.members) == sorted([one, two])
        await api.database.tenants.create("red", datetime.now(UTC))
        empty = read(await put(api, f"{kind}/alice?tenant=red"), BudgetGroupObject)
        assert (empty.tokens_per_day, empty.tokens_used, empty.members) == (None, 0, [])
        assert await listed(api) == [created, empty]
        assert await listed(api, "?tenant=red") == [empty]
        assert read(await api.http.get(f"{PATH}/{path}"), BudgetGroupObject) == created
        deleted = read(await api.http.delete(f"{PATH}/{path}"), DeletedBudgetGroup)
        assert (deleted.kind, deleted.tenant, deleted.name) == (kind, "blue", "alice")
        assert await listed(api) == [empty]
        assert len(await api.database.api_keys.all("blue")) == 3


async def test_groups_of_each_kind_may_have_the_same_name_and_are_listed_by_kind() -> None:
    async with open_api() as api:
        [key] = await keys(api, "blue", 1)
        for group, members in (
            (ALICE, [key]),
            ("team/alice?tenant=blue", [key]),
            ("organization/alice", ["blue"]),
        ):
            assert await changed(api, group, members=members) == (None, members)
        assert [group.kind for group in await listed(api)] == ["organization", "team", "user"]
        assert [group.members for group in await listed(api)] == [["blue"], [key], [key]]
        assert [group.kind for group in await listed(api, "?kind=team")] == ["team"]
        assert [group.kind for group in await listed(api, "?tenant=blue")] == ["team", "user"]
        refused = await api.http.get(PATH + "?kind=people")
        assert (refused.status_code, error_of(refused).param) == (400, "kind")


async def test_a_field_that_is_not_sent_stays_and_members_replace_all_tenants() -> None:
    async with open_api() as api:
        await put(api, ACME, tokens_per_day=90, members=["blue", "red"])
        assert await changed(api, ACME) == (90, ["blue", "red"])
        assert await changed(api, ACME, tokens_per_day=80) == (80, ["blue", "red"])
        assert await changed(api, ACME, members=["red", "white", "red"]) == (80, ["red", "white"])
        assert await changed(api, ACME, tokens_per_day=0) == (None, ["red", "white"])
        assert await changed(api, ACME, tokens_per_day=7, members=[]) == (7, [])
        assert await changed(api, ACME, tokens_per_day=None) == (None, [])
        assert await changed(api, OTHER, members=["blue"]) == (None, ["blue"])


async def test_the_budget_of_cost_is_exact_and_stays_if_it_is_not_sent() -> None:
    async with open_api() as api:
        spent = [DailyUsage("blue", "", 30, 1), DailyUsage("red", "key", 5, 10**12)]
        await publish_usage(api.database.quotas, "w", *spent)
        await put(api, ACME, tokens_per_day=90, cost_per_day="2.500", members=["blue", "red"])
        for body in ({}, {"tokens_per_day": 80}):
            found = read(await put(api, ACME, **body), BudgetGroupObject)
            assert (found.cost_per_day, found.cost_used) == ("2.5", "1.000000000001")
        found = read(await put(api, ACME, cost_per_day=3), BudgetGroupObject)
        assert (found.tokens_per_day, found.cost_per_day) == (80, "3")
        for none in (0, None):
            found = read(await put(api, ACME, cost_per_day=none), BudgetGroupObject)
            assert (found.tokens_per_day, found.cost_per_day) == (80, None)
        assert read(await put(api, OTHER, cost_per_day=0), BudgetGroupObject).cost_per_day is None


async def test_a_field_that_is_not_sent_stays_and_keys_move_from_their_previous_user() -> None:
    async with open_api() as api:
        one, two = await keys(api, "blue", 2)
        await put(api, ALICE, tokens_per_day=90, members=[one])
        assert await changed(api, ALICE) == (90, [one])
        assert await changed(api, ALICE, tokens_per_day=80) == (80, [one])
        assert await changed(api, BOB, members=[two]) == (None, [two])
        assert await changed(api, BOB, members=[one, one]) == (None, [one])
        assert await changed(api, ALICE) == (80, [])
        assert await changed(api, ALICE, tokens_per_day=0, members=[two]) == (None, [two])
        assert await changed(api, BOB, tokens_per_day=7, members=[]) == (7, [])
        assert await changed(api, BOB, tokens_per_day=None) == (None, [])


async def test_a_tenant_of_another_organization_is_a_conflict_that_changes_nothing() -> None:
    async with open_api() as api:
        await put(api, ACME, members=["blue"])
        await put(api, OTHER, tokens_per_day=5, members=["red"])
        for group in (OTHER, "organization/new"):
            refused = await put(api, group, tokens_per_day=9, members=["white", "blue"])
            assert (refused.status_code, error_of(refused).param) == (409, "members")
            assert "'blue' is in the organization 'acme'" in error_of(refused).message
            assert refused.headers["x-should-retry"] == "false"
        assert await changed(api, OTHER) == (5, ["red"])
        assert (await api.http.get(f"{PATH}/organization/new")).status_code == 404


async def test_a_user_of_an_unknown_tenant_is_not_found() -> None:
    async with open_api() as api:
        refused = await put(api, "user/alice?tenant=nobody", tokens_per_day=5)
        assert (refused.status_code, error_of(refused).param) == (404, "tenant")
        assert api.database.rows.budget_groups == {}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("group", "message"),
    [("organization/nobody", "'nobody'"), (BOB, "'blue' has no user with name 'bob'")],
)
async def test_an_unknown_group_is_not_found(method: str, group: str, message: str) -> None:
    async with open_api() as api:
        await api.database.tenants.create("blue", datetime.now(UTC))
        await put(api, ALICE)
        refused = await api.http.request(method, f"{PATH}/{group}")
    assert (refused.status_code, error_of(refused).param) == (404, "name")
    assert message in error_of(refused).message


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize(
    ("group", "code", "param"),
    [
        ("organization/a%20b", "invalid_value", "name"),
        ("user/a%20b?tenant=blue", "invalid_value", "name"),
        ("user/alice?tenant=a%20b", "invalid_value", "tenant"),
        ("team/alice", "missing_required_parameter", "tenant"),
        ("organization/acme?tenant=blue", "invalid_value", "tenant"),
        ("people/alice", "invalid_value", "kind"),
    ],
)
async def test_an_invalid_name_tenant_or_kind_of_a_group_is_refused(
    method: str, group: str, code: str, param: str
) -> None:
    async with open_api() as api:
        refused = await api.http.request(method, f"{PATH}/{group}", json={})
        of_list = await api.http.get(PATH + "?tenant=a%20b")
    for answer, expected in ((refused, (code, param)), (of_list, ("invalid_value", "tenant"))):
        assert answer.status_code == 400
        assert (error_of(answer).code, error_of(answer).param) == expected


BUDGETS = [
    ({"tokens_per_day": -1}, "invalid_value", "tokens_per_day"),
    ({"tokens_per_day": MAX_QUOTA + 1}, "invalid_value", "tokens_per_day"),
    ({"tokens_per_day": "9"}, "invalid_type", "tokens_per_day"),
    ({"cost_per_day": -1}, "invalid_value", "cost_per_day"),
    ({"cost_per_day": "much"}, "invalid_value", "cost_per_day"),
    ({"cost_per_day": 1e-7}, "invalid_value", "cost_per_day"),
    ({"cost_per_day": True}, "invalid_value", "cost_per_day"),
    ({"members": None}, "invalid_type", "members"),
    ({"members": "blue"}, "invalid_type", "members"),
    ({"members": ["a"] * 1001}, "invalid_value", "members"),
    ({"budget": 1}, "unknown_parameter", "budget"),
]


@pytest.mark.parametrize(
    ("group", "body", "code", "param"),
    [
        *((ACME, *wrong) for wrong in BUDGETS),
        (ACME, {"members": ["blue", 7]}, "invalid_type", "members[1]"),
        (ACME, {"members": ["a b"]}, "invalid_value", "members[0]"),
        *((ALICE, *wrong) for wrong in BUDGETS),
        (ALICE, {"members": ["{own}", 7]}, "invalid_type", "members[1]"),
        (ALICE, {"members": ["{own}", "key_none"]}, "invalid_value", "members[1]"),
        (ALICE, {"members": ["{other}"]}, "invalid_value", "members[0]"),
    ],
)
async def test_an_invalid_field_is_named_and_no_group_is_created(
    group: str, body: dict[str, object], code: str, param: str
) -> None:
    async with open_api() as api:
        [own], [other] = await keys(api, "blue", 1), await keys(api, "red", 1)
        text = json.dumps(body).replace("{own}", own).replace("{other}", other)
        refused = await api.http.put(f"{PATH}/{group}", content=text)
        assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (400, code, param)
        assert api.database.rows.budget_groups == {}


async def test_limits_show_the_remaining_budget_of_the_user_of_the_key() -> None:
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "blue", user="alice")
        other_key = await create_key(api.database, "blue")
        [id] = (await api.database.budget_groups.all())[0].members
        await api.database.budget_groups.limit(user("blue", "alice"), tokens_per_day=100)
        await publish_usage(api.database.quotas, "w", DailyUsage("blue", id, 30), DailyUsage("blue", "", 50))
        answers = [
            await api.http.get("/v1/x/limits", headers={"Authorization": f"Bearer {of.text}"})
            for of in (key, other_key)
        ]
        mine, theirs = [read(answer, LimitsObject) for answer in answers]
    assert theirs.groups == []
    alice, of_cost = mine.groups
    assert (alice.kind, alice.name) == (of_cost.kind, of_cost.name) == (GroupKind.USER, "alice")
    assert (alice.limit, alice.used, alice.left) == (100, 30, 70)
    assert (of_cost.quota, of_cost.limit, of_cost.used) == (Quota.COST_PER_DAY, None, "0")
