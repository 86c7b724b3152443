"""`batchwright tenants`, `keys` and `budget-groups`, against PostgreSQL."""

import asyncio
import json

import pytest

from batchwright.database.database import Database
from batchwright.database.tables.operations.audit_log import AuditFilters
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.api_keys import parse_key, secret_matches
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.rules.tenants.scopes import Scope
from batchwright.rules.worker_stats import FRESH_AGE
from batchwright.starter.embedded_stack.ports import free_port
from tests.fakes.token_usage import publish_usage
from tests.integration.starter.commands import Ended, batchwright

pytestmark = pytest.mark.integration


class Operator:
    def __init__(self, database_url: str) -> None:
        self._url = database_url

    async def __call__(self, *arguments: str) -> Ended:
        ended = await batchwright(*arguments, database_url=self._url)
        assert "Traceback" not in ended.stderr
        return ended


@pytest.fixture
def operator(database_url: str) -> Operator:
    return Operator(database_url)


async def test_a_tenant_and_its_key_are_created_used_and_deleted(
    operator: Operator, database: Database
) -> None:
    assert (await operator("tenants", "create", "blue")).code == 0
    created = await operator(
        "keys", "create", "blue", "--scope", "write", "--scope", "read", "--label", "nightly"
    )
    [text] = created.stdout
    key = parse_key(text)
    assert key is not None
    assert text not in created.stderr
    found = await database.api_keys.find(key.prefix)
    assert found is not None
    assert (found.key.scopes, secret_matches(key, found.secret_hash)) == ([Scope.READ, Scope.WRITE], True)
    listed = await operator("keys", "list", "blue")
    assert f"bw_{key.prefix}_..." in " ".join(listed.stdout)
    assert key.secret not in repr([listed, await operator("keys", "list", "--json")])
    shown = json.loads((await operator("tenants", "show", "blue", "--json")).stdout[0])
    assert (shown["name"], shown["keys"], shown["live_batches"]) == ("blue", 1, 0)
    revoked = await operator("keys", "revoke", text)
    assert (revoked.code, key.secret in revoked.stderr) == (0, False)
    assert "revoked" in " ".join((await operator("keys", "list")).stdout)


async def test_a_key_has_a_budget_and_shows_its_usage_of_today(
    operator: Operator, database: Database
) -> None:
    await operator("tenants", "create", "blue")
    created = json.loads(
        (await operator("keys", "create", "blue", "--tokens-per-day", "50", "--json")).stdout[0]
    )
    await publish_usage(database.quotas, "w", DailyUsage("blue", created["id"], 20))
    assert "20 of 50" in " ".join((await operator("keys", "list")).stdout)
    raised = await operator("keys", "limit", created["prefix"], "--tokens-per-day", "90")
    assert (raised.code, "90 tokens a day" in raised.stderr) == (0, True)
    assert await database.quotas.key_budgets() == {("blue", created["id"]): DailyAmounts(90)}
    taken_back = json.loads(
        (await operator("keys", "limit", created["id"], "--tokens-per-day", "0", "--json")).stdout[0]
    )
    assert taken_back.get("tokens_per_day") is None
    assert await database.quotas.key_budgets() == {}
    assert (await operator("keys", "limit", "key_none", "--tokens-per-day", "1")).code == 1


async def test_a_key_has_a_cap_on_its_requests_in_flight(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    created = json.loads(
        (await operator("keys", "create", "blue", "--max-in-flight", "8", "--json")).stdout[0]
    )
    assert [(cap.key_id, cap.max_in_flight) for cap in await database.quotas.key_caps(FRESH_AGE)] == [
        (created["id"], 8)
    ]
    assert "flight" in " ".join((await operator("keys", "list")).stdout)
    changed = await operator("keys", "limit", created["id"], "--max-in-flight", "16")
    assert changed.stderr.endswith("has no budget of its own and at most 16 requests in flight.\n")
    both = await operator("keys", "limit", created["id"], "--max-in-flight", "0", "--tokens-per-day", "9")
    assert both.stderr.endswith("has 9 tokens a day.\n")
    assert await database.quotas.key_caps(FRESH_AGE) == []
    assert "flight" not in " ".join((await operator("keys", "list")).stdout)
    assert (await operator("keys", "limit", "key_none", "--max-in-flight", "1")).code == 1


async def test_a_user_is_created_changed_shown_and_deleted(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    alice, bob = ("user", "alice", "--tenant", "blue"), ("user", "bob", "--tenant", "blue")
    created = await operator("budget-groups", "create", *alice, "--tokens-per-day", "50")
    assert (created.code, created.stderr) == (0, "alice of blue has 50 tokens a day. Keys: 0.\n")
    await operator("budget-groups", "create", *bob)
    label = ("--label", "a nightly evaluation of everything there is")
    new_keys = [
        json.loads((await operator("keys", "create", "blue", *label, "--user", user, "--json")).stdout[0])
        for user in ("alice", "bob")
    ]
    ids = [key["id"] for key in new_keys]
    await publish_usage(database.quotas, "w", *(DailyUsage("blue", id, 20) for id in ids))
    given = await operator("budget-groups", "add", *alice, f"bw_{new_keys[1]['prefix']}_...")
    assert (given.code, given.stderr) == (0, "alice of blue has 50 tokens a day. Keys: 2.\n")
    assert "40 of 50" in " ".join((await operator("budget-groups", "list", "--tenant", "blue")).stdout)
    listed = " ".join((await operator("keys", "list")).stdout)
    assert all(part in listed for part in ("alice", *(f" bw_{key['prefix']}_... " for key in new_keys)))
    shown = " ".join((await operator("budget-groups", "show", *alice)).stdout)
    assert all(f"bw_{key['prefix']}_..." in shown for key in new_keys)
    assert "10" in shown
    of_all = json.loads((await operator("budget-groups", "list", "--json")).stdout[0])["budget_groups"]
    assert [(row["name"], row["tokens_used"], row["members"]) for row in of_all] == [
        ("alice", 40, ids),
        ("bob", 0, []),
    ]
    raised = await operator("budget-groups", "limit", *alice, "--tokens-per-day", "90")
    assert (raised.code, raised.stderr) == (0, "alice of blue has 90 tokens a day. Keys: 2.\n")
    await operator("keys", "revoke", ids[0])
    assert "_..., revoked " in " ".join((await operator("budget-groups", "show", *alice)).stdout)
    taken = await operator("budget-groups", "remove", *alice, ids[1])
    assert (taken.code, taken.stderr) == (0, "alice of blue has 90 tokens a day. Keys: 1.\n")
    again = await operator("budget-groups", "remove", *alice, ids[1])
    assert (again.code, again.stderr) == (1, f"Not in the user alice: {ids[1]!r}.\n")
    none = await operator("budget-groups", "limit", *alice, "--tokens-per-day", "0", "--json")
    assert json.loads(none.stdout[0]).items() >= {"tokens_used": 20, "members": ids[:1]}.items()
    assert (await operator("budget-groups", "delete", *alice)).code == 0
    assert [(row.name, row.members) for row in await database.budget_groups.all()] == [("bob", [])]
    assert len(await database.api_keys.all("blue")) == 2


async def test_groups_and_keys_have_budgets_of_cost(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    alice = ("user", "alice", "--tenant", "blue")
    created = await operator("budget-groups", "create", *alice, "--cost-per-day", "2.50")
    assert (created.code, created.stderr) == (0, "alice of blue has a cost of 2.5 a day. Keys: 0.\n")
    new = await operator("keys", "create", "blue", "--user", "alice", "--cost-per-day", "1", "--json")
    key = json.loads(new.stdout[0])
    assert (key["cost_per_day"], key["tokens_per_day"]) == ("1", None)
    await publish_usage(database.quotas, "w", DailyUsage("blue", key["id"], 20, 3 * 10**11))
    assert "0.3 of 2.5" in " ".join((await operator("budget-groups", "list")).stdout)
    assert "2.2" in " ".join((await operator("budget-groups", "show", *alice)).stdout)
    assert "0.3 of" in " ".join((await operator("keys", "list")).stdout)
    both = await operator("budget-groups", "limit", *alice, "--tokens-per-day", "90")
    assert both.stderr == "alice of blue has 90 tokens and a cost of 2.5 a day. Keys: 1.\n"
    none = await operator("budget-groups", "limit", *alice, "--cost-per-day", "0", "--json")
    assert json.loads(none.stdout[0]).items() >= {"cost_per_day": None, "cost_used": "0.3"}.items()
    raised = await operator("keys", "limit", key["id"], "--cost-per-day", "4")
    assert "has a cost of 4 a day" in raised.stderr
    for command in (("budget-groups", "limit", *alice), ("keys", "limit", key["id"])):
        assert "There is nothing to change" in (await operator(*command)).stderr
        wrong = await operator(*command, "--cost-per-day=-1")
        assert (wrong.code, "it is '-1'" in wrong.stderr) == (3, True)


async def test_a_key_is_created_for_a_team_and_a_user(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    for kind, name in (("team", "search"), ("user", "alice")):
        await operator("budget-groups", "create", kind, name, "--tenant", "blue")
    created = await operator("keys", "create", "blue", "--team", "search", "--user", "alice")
    assert "of blue, team search, user alice: read, write." in created.stderr
    [key] = json.loads((await operator("keys", "list", "--json")).stdout[0])["keys"]
    assert (key["team"], key["user"]) == ("search", "alice")
    listed = await operator("budget-groups", "list", "--kind", "team")
    assert "search" in " ".join(listed.stdout)
    assert "alice" not in " ".join(listed.stdout)


async def test_a_user_of_another_tenant_has_no_key_of_this_one(operator: Operator) -> None:
    for tenant in ("blue", "red"):
        await operator("tenants", "create", tenant)
    await operator("budget-groups", "create", "user", "alice", "--tenant", "red")
    sentence = (
        "Tenant 'blue' has no user 'alice': "
        "`batchwright budget-groups create user alice --tenant blue` creates it.\n"
    )
    refused = await operator("keys", "create", "blue", "--user", "alice")
    assert (refused.code, refused.stdout, refused.stderr) == (1, [], sentence)
    created = json.loads((await operator("keys", "create", "blue", "--json")).stdout[0])
    refused = await operator("budget-groups", "add", "user", "alice", created["id"], "--tenant", "blue")
    assert (refused.code, refused.stderr) == (1, sentence)
    refused = await operator("budget-groups", "add", "user", "alice", created["id"], "--tenant", "red")
    assert (refused.code, f"Tenant 'red' has no key {created['id']!r}" in refused.stderr) == (1, True)
    refused = await operator("budget-groups", "add", "user", "alice", "bw_x_secret", "--tenant", "red")
    assert (refused.code, "Tenant 'red' has no key 'bw_x';" in refused.stderr) == (1, True)


async def test_an_organization_is_created_changed_shown_and_deleted(
    operator: Operator, database: Database
) -> None:
    group = ("organization", "group")
    created = await operator("budget-groups", "create", *group, "--tokens-per-day", "50", "--json")
    assert (
        json.loads(created.stdout[0]).items()
        >= {"name": "group", "tokens_per_day": 50, "tokens_used": 0}.items()
    )
    added = await operator("budget-groups", "add", *group, "red", "blue")
    assert (added.code, added.stderr) == (0, "group has 50 tokens a day. Tenants: blue, red.\n")
    await publish_usage(database.quotas, "w", DailyUsage("blue", "", 20), DailyUsage("red", "key", 5))
    listed = " ".join((await operator("budget-groups", "list")).stdout)
    assert "25 of 50" in listed
    assert "blue, red" in listed
    [row] = json.loads((await operator("budget-groups", "list", "--json")).stdout[0])["budget_groups"]
    assert (row["tokens_used"], row["members"]) == (25, ["blue", "red"])
    await operator("budget-groups", "create", "organization", "other")
    taken = await operator("budget-groups", "add", "organization", "other", "blue")
    assert taken.code == 1
    assert "`batchwright budget-groups remove organization group blue`" in taken.stderr
    raised = await operator("budget-groups", "limit", *group, "--tokens-per-day", "90")
    assert (raised.code, "90 tokens a day" in raised.stderr) == (0, True)
    removed = await operator("budget-groups", "limit", *group, "--tokens-per-day", "0")
    assert "no budget" in removed.stderr
    assert (await operator("budget-groups", "remove", *group, "red")).code == 0
    again = await operator("budget-groups", "remove", *group, "red")
    assert (again.code, again.stderr) == (1, "Not in the organization group: 'red'.\n")
    shown = " ".join((await operator("budget-groups", "show", *group)).stdout)
    assert all(part in shown for part in ("group", "20", "blue"))
    assert (await operator("budget-groups", "delete", *group)).code == 0
    assert [row.name for row in await database.budget_groups.all()] == ["other"]


async def test_a_key_expires_and_json_shows_its_secret_only_at_creation(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    [line] = (await operator("keys", "create", "blue", "--expires-in", "90d", "--json")).stdout
    created = json.loads(line)
    [listed] = json.loads((await operator("keys", "list", "--json")).stdout[0])["keys"]
    assert parse_key(created["secret_key"]) is not None
    assert created["scopes"] == ["read", "write"]
    assert created["expires_at"] > created["created_at"]
    assert set(created) - set(listed) == {"secret_key"}


async def test_a_tenant_is_disabled_and_enabled(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    assert (await operator("tenants", "disable", "blue")).code == 0
    assert "disabled since" in " ".join((await operator("tenants", "list")).stdout)
    assert (
        json.loads((await operator("tenants", "enable", "blue", "--json")).stdout[0])["disabled_at"] is None
    )
    assert "enabled" in " ".join((await operator("tenants", "show", "blue")).stdout)


WRONG = [
    ("tenants create -a", 3, ""),
    ("tenants create a/b", 3, "'a/b' cannot be a tenant's name"),
    ("tenants show red", 1, "There is no tenant 'red': `batchwright tenants create red` creates it."),
    ("tenants disable red", 1, "There is no tenant 'red'"),
    ("tenants enable red", 1, "There is no tenant 'red'"),
    ("keys create red", 1, "There is no tenant 'red': `batchwright tenants create red` creates it."),
    ("keys create red --expires-in soon", 3, "'soon' is not a duration such as 12h or 90d"),
    ("keys create red --scope all", 3, ""),
    ("keys create red --max-in-flight 0", 3, ""),
    (
        "keys limit key_1",
        3,
        "There is nothing to change: give --tokens-per-day, --cost-per-day or --max-in-flight.",
    ),
    ("keys limit key_1 --max-in-flight=-1", 3, ""),
    ("keys limit key_1 --max-in-flight many", 3, ""),
    ("budget-groups create organization a/b", 3, "'a/b' cannot be a group's name"),
    ("budget-groups create people red", 3, ""),
    ("budget-groups create organization red --tenant t", 3, "An organization belongs to no tenant"),
    ("budget-groups create user red", 3, "A user belongs to a tenant: give --tenant NAME."),
    ("budget-groups add organization red a/b", 3, "'a/b' cannot be a tenant's name"),
    ("budget-groups add organization red blue", 1, "There is no organization 'red'"),
    ("budget-groups remove organization red blue", 1, "There is no organization 'red'"),
    ("budget-groups limit organization red --tokens-per-day 1", 1, "There is no organization 'red'"),
    ("budget-groups create organization red --tokens-per-day 0", 3, ""),
    ("budget-groups delete organization red", 1, "There is no organization 'red'"),
    ("budget-groups create user alice --tenant red", 1, "`batchwright tenants create red` creates it."),
    ("budget-groups create team a/b --tenant red", 3, "'a/b' cannot be a group's name"),
    ("budget-groups show user alice --tenant red", 1, "Tenant 'red' has no user 'alice'"),
    ("budget-groups add team ads key_x --tenant red", 1, "Tenant 'red' has no team 'ads'"),
    ("budget-groups delete user alice --tenant red", 1, "Tenant 'red' has no user 'alice'"),
    ("keys revoke key_x", 1, "There is no key 'key_x'; `batchwright keys list` lists them."),
    ("keys revoke bw_x", 1, "There is no key 'bw_x'; `batchwright keys list` lists them."),
    ("keys limit bw_x_secret --max-in-flight 1", 1, "There is no key 'bw_x'; `batchwright keys list`"),
]


async def test_invalid_input_is_refused_in_one_sentence(operator: Operator) -> None:
    ended = await asyncio.gather(*(operator(*arguments.split()) for arguments, _, _ in WRONG))
    for (arguments, code, sentence), end in zip(WRONG, ended, strict=True):
        assert (arguments, end.code, end.stdout) == (arguments, code, [])
        assert sentence in end.stderr


async def test_a_tenant_is_not_created_twice(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    again = await operator("tenants", "create", "blue")
    assert (again.code, again.stderr) == (1, "There is a tenant 'blue' already.\n")


async def test_a_group_is_not_created_twice(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    for group, sentence in (
        ("organization acme", "There is an organization 'acme' already.\n"),
        ("team ads --tenant blue", "Tenant 'blue' has a team 'ads' already.\n"),
    ):
        await operator("budget-groups", "create", *group.split())
        again = await operator("budget-groups", "create", *group.split())
        assert (again.code, again.stderr) == (1, sentence)


async def test_empty_lists_name_the_command_that_fills_them(operator: Operator) -> None:
    for what in ("tenants", "keys", "budget-groups"):
        ended = await operator(what, "list")
        assert (ended.code, ended.stdout) == (0, [])
        assert f"batchwright {what} create" in ended.stderr


async def test_a_database_that_does_not_answer_is_named() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    ended = await batchwright("keys", "list", database_url=f"postgresql://{nowhere}/x")
    assert ended.code == 3
    assert nowhere in ended.stderr


async def test_commands_that_change_the_database_are_in_the_audit_log(
    operator: Operator, database: Database
) -> None:
    await operator("tenants", "create", "blue")
    await operator("tenants", "create", "blue")
    [text] = (await operator("keys", "create", "blue", "--scope", "viewer")).stdout
    prefix = text.split("_")[1]
    await operator("keys", "limit", text, "--tokens-per-day", "7")
    await operator("keys", "revoke", f"bw_{prefix}")
    await operator("keys", "revoke", "nobodys")
    await operator("tenants", "disable", "blue")
    await operator("tenants", "disable", "red")
    await operator("budget-groups", "create", "team", "t", "--tenant", "blue")
    await operator("budget-groups", "add", "team", "t", "key_nobodys", "--tenant", "blue")
    await operator("budget-groups", "delete", "team", "t", "--tenant", "blue")
    actions, _ = await database.audit_log.page(AuditFilters(), limit=20, ascending=True)
    found = [
        (action.entry.action.value, action.result.outcome.value, action.result.code) for action in actions
    ]
    assert found == [
        ("tenant.create", "ok", ""),
        ("tenant.create", "refused", "tenant_exists"),
        ("key.create", "ok", ""),
        ("key.limit", "ok", ""),
        ("key.revoke", "ok", ""),
        ("key.revoke", "refused", "key_not_found"),
        ("tenant.disable", "ok", ""),
        ("tenant.disable", "refused", "tenant_not_found"),
        ("budget_group.set", "ok", ""),
        ("budget_group.set", "refused", "key_not_found"),
        ("budget_group.delete", "ok", ""),
    ]
    created, limited, revoked = actions[2:5]
    assert created.entry.before is None
    assert created.entry.target.id == limited.entry.target.id == revoked.entry.target.id
    assert isinstance(limited.entry.before, dict)
    assert isinstance(limited.result.after, dict)
    assert (limited.entry.before["tokens_per_day"], limited.result.after["tokens_per_day"]) == (None, 7)
    assert isinstance(revoked.result.after, dict)
    assert revoked.result.after["revoked_at"] is not None
    assert {action.entry.actor.source for action in actions} == {"cli"}
    assert all(action.entry.actor.user and action.entry.actor.address for action in actions)
    assert text.split("_")[2] not in repr(actions)
