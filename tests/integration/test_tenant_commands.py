"""`batchwright tenants` and `keys`, against PostgreSQL."""

import asyncio
import json

import pytest

from batchwright.database.pool import Database
from batchwright.database.quotas_base import Spent
from batchwright.rules.api_keys import Scope, opens, parse
from starter.stack.ports import free_port
from tests.fakes.spent import tell_spent
from tests.integration.commands import Ended, batchwright

pytestmark = pytest.mark.integration


class Operator:
    def __init__(self, database_url: str) -> None:
        self._url = database_url

    async def __call__(self, *arguments: str) -> Ended:
        ended = await batchwright(*arguments, database_url=self._url)
        assert "Traceback" not in ended.complained
        return ended


@pytest.fixture
def operator(database_url: str) -> Operator:
    return Operator(database_url)


async def test_a_tenant_and_its_key_from_the_first_day_to_the_last(
    operator: Operator, database: Database
) -> None:
    assert (await operator("tenants", "create", "blue")).code == 0
    made = await operator(
        "keys", "create", "blue", "--scope", "write", "--scope", "read", "--label", "nightly"
    )
    [text] = made.said
    key = parse(text)
    assert key is not None
    assert text not in made.complained
    found = await database.api_keys.find(key.prefix)
    assert found is not None
    assert (found.key.scopes, opens(key, found.kept)) == ([Scope.READ, Scope.WRITE], True)
    listed = await operator("keys", "list", "blue")
    assert f"bw_{key.prefix}_..." in " ".join(listed.said)
    assert key.secret not in repr([listed, await operator("keys", "list", "--json")])
    shown = json.loads((await operator("tenants", "show", "blue", "--json")).said[0])
    assert (shown["name"], shown["keys"], shown["live_batches"]) == ("blue", 1, 0)
    revoked = await operator("keys", "revoke", text)
    assert (revoked.code, key.secret in revoked.complained) == (0, False)
    assert "revoked" in " ".join((await operator("keys", "list")).said)


async def test_a_key_has_a_budget_and_shows_what_it_used_today(
    operator: Operator, database: Database
) -> None:
    await operator("tenants", "create", "blue")
    made = json.loads((await operator("keys", "create", "blue", "--tokens-per-day", "50", "--json")).said[0])
    await tell_spent(database.quotas, "w", Spent("blue", made["id"], 20))
    assert "20 of 50" in " ".join((await operator("keys", "list")).said)
    raised = await operator("keys", "limit", made["prefix"], "--tokens-per-day", "90")
    assert (raised.code, "90 tokens a day" in raised.complained) == (0, True)
    assert await database.quotas.key_budgets() == {made["id"]: 90}
    taken_back = json.loads(
        (await operator("keys", "limit", made["id"], "--tokens-per-day", "0", "--json")).said[0]
    )
    assert taken_back.get("tokens_per_day") is None
    assert await database.quotas.key_budgets() == {}
    assert (await operator("keys", "limit", "key_none", "--tokens-per-day", "1")).code == 1


async def test_a_user_from_the_first_day_to_the_last(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    made = await operator("users", "create", "blue", "alice", "--tokens-per-day", "50")
    assert (made.code, made.complained) == (0, "alice of blue has 50 tokens a day. Keys: 0.\n")
    await operator("users", "create", "blue", "bob")
    label = ("--label", "a nightly evaluation of everything there is")
    made_keys = [
        json.loads((await operator("keys", "create", "blue", *label, "--user", user, "--json")).said[0])
        for user in ("alice", "bob")
    ]
    ids = [key["id"] for key in made_keys]
    await tell_spent(database.quotas, "w", *(Spent("blue", id, 20) for id in ids))
    given = await operator("keys", "assign", ids[1], "--user", "alice")
    assert (given.code, given.complained.endswith("of blue is the user alice's now.\n")) == (0, True)
    assert "40 of 50" in " ".join((await operator("users", "list", "blue")).said)
    listed = " ".join((await operator("keys", "list")).said)
    assert all(part in listed for part in ("alice", *(f" bw_{key['prefix']}_... " for key in made_keys)))
    shown = " ".join((await operator("users", "show", "blue", "alice")).said)
    assert all(f"bw_{key['prefix']}_..." in shown for key in made_keys)
    assert "10" in shown
    of_all = json.loads((await operator("users", "list", "--json")).said[0])["users"]
    assert [(row["name"], row["used"], row["keys"]) for row in of_all] == [("alice", 40, ids), ("bob", 0, [])]
    raised = await operator("users", "limit", "blue", "alice", "--tokens-per-day", "90")
    assert (raised.code, raised.complained) == (0, "alice of blue has 90 tokens a day. Keys: 2.\n")
    await operator("keys", "revoke", ids[0])
    assert "_..., revoked " in " ".join((await operator("users", "show", "blue", "alice")).said)
    taken = await operator("keys", "assign", ids[1], "--no-user")
    assert taken.complained.endswith("of blue is no user's now.\n")
    none = await operator("users", "limit", "blue", "alice", "--tokens-per-day", "0", "--json")
    assert json.loads(none.said[0]).items() >= {"used": 20, "keys": ids[:1]}.items()
    assert (await operator("users", "delete", "blue", "alice")).code == 0
    assert [(row.name, row.keys) for row in await database.users.all()] == [("bob", [])]
    assert len(await database.api_keys.all("blue")) == 2


async def test_a_user_of_another_tenant_has_no_key_of_this_one(operator: Operator) -> None:
    for tenant in ("blue", "red"):
        await operator("tenants", "create", tenant)
    await operator("users", "create", "red", "alice")
    sentence = "Tenant 'blue' has no user 'alice': `batchwright users create blue alice` makes it.\n"
    refused = await operator("keys", "create", "blue", "--user", "alice")
    assert (refused.code, refused.said, refused.complained) == (1, [], sentence)
    made = json.loads((await operator("keys", "create", "blue", "--json")).said[0])
    refused = await operator("keys", "assign", made["id"], "--user", "alice")
    assert (refused.code, refused.complained) == (1, sentence)


async def test_an_organization_from_the_first_day_to_the_last(operator: Operator, database: Database) -> None:
    made = await operator("organizations", "create", "group", "--tokens-per-day", "50", "--json")
    assert json.loads(made.said[0]).items() >= {"name": "group", "tokens_per_day": 50, "used": 0}.items()
    added = await operator("organizations", "add", "group", "red", "blue")
    assert (added.code, added.complained) == (0, "group has 50 tokens a day. Tenants: blue, red.\n")
    await tell_spent(database.quotas, "w", Spent("blue", "", 20), Spent("red", "key", 5))
    listed = " ".join((await operator("organizations", "list")).said)
    assert "25 of 50" in listed
    assert "blue, red" in listed
    [row] = json.loads((await operator("organizations", "list", "--json")).said[0])["organizations"]
    assert (row["used"], row["tenants"]) == (25, ["blue", "red"])
    await operator("organizations", "create", "other")
    taken = await operator("organizations", "add", "other", "blue")
    assert (taken.code, "`batchwright organizations remove group blue`" in taken.complained) == (1, True)
    raised = await operator("organizations", "limit", "group", "--tokens-per-day", "90")
    assert (raised.code, "90 tokens a day" in raised.complained) == (0, True)
    assert (
        "no budget" in (await operator("organizations", "limit", "group", "--tokens-per-day", "0")).complained
    )
    assert (await operator("organizations", "remove", "group", "red")).code == 0
    again = await operator("organizations", "remove", "group", "red")
    assert (again.code, again.complained) == (1, "Not in the organization group: 'red'.\n")
    assert (await operator("organizations", "delete", "group")).code == 0
    assert [row.name for row in await database.quotas.organizations()] == ["other"]


async def test_a_key_has_an_end_and_json_has_the_whole_of_it_once(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    [line] = (await operator("keys", "create", "blue", "--expires-in", "90d", "--json")).said
    made = json.loads(line)
    [listed] = json.loads((await operator("keys", "list", "--json")).said[0])["keys"]
    assert parse(made["secret_key"]) is not None
    assert made["scopes"] == ["read", "write"]
    assert made["expires_at"] > made["created_at"]
    assert set(made) - set(listed) == {"secret_key"}


async def test_a_tenant_is_disabled_and_enabled(operator: Operator, database: Database) -> None:
    await operator("tenants", "create", "blue")
    assert (await operator("tenants", "disable", "blue")).code == 0
    assert "disabled since" in " ".join((await operator("tenants", "list")).said)
    assert json.loads((await operator("tenants", "enable", "blue", "--json")).said[0])["disabled_at"] is None
    assert "enabled" in " ".join((await operator("tenants", "show", "blue")).said)


WRONG = [
    ("tenants create -a", 3, ""),
    ("tenants create a/b", 3, "'a/b' cannot be a tenant's name"),
    ("tenants show red", 1, "There is no tenant 'red': `batchwright tenants create red` makes it."),
    ("tenants disable red", 1, "There is no tenant 'red'"),
    ("tenants enable red", 1, "There is no tenant 'red'"),
    ("keys create red", 1, "There is no tenant 'red': `batchwright tenants create red` makes it."),
    ("keys create red --expires-in soon", 3, "'soon' is no time such as 12h or 90d"),
    ("keys create red --scope all", 3, ""),
    ("organizations create a/b", 3, "'a/b' cannot be an organization's name"),
    ("organizations add red a/b", 3, "'a/b' cannot be a tenant's name"),
    ("organizations add red blue", 1, "There is no organization 'red'"),
    ("organizations remove red blue", 1, "There is no organization 'red'"),
    ("organizations limit red --tokens-per-day 1", 1, "There is no organization 'red'"),
    ("organizations create red --tokens-per-day 0", 3, ""),
    ("organizations delete red", 1, "There is no organization 'red'"),
    ("users create red alice", 1, "There is no tenant 'red': `batchwright tenants create red` makes it."),
    ("users create red a/b", 3, "'a/b' cannot be a user's name"),
    ("users create red alice --tokens-per-day 0", 3, ""),
    ("users show red alice", 1, "Tenant 'red' has no user 'alice'"),
    ("users limit red alice --tokens-per-day 1", 1, "Tenant 'red' has no user 'alice'"),
    ("users delete red alice", 1, "Tenant 'red' has no user 'alice'"),
    ("keys assign key_x", 3, "Name either --user NAME or --no-user."),
    ("keys assign key_x --user a --no-user", 3, "Name either --user NAME or --no-user."),
    ("keys assign key_x --user a", 1, "There is no key 'key_x'; `batchwright keys list` lists them."),
    ("keys revoke key_x", 1, "There is no key 'key_x'; `batchwright keys list` lists them."),
]


async def test_what_cannot_be_is_said_in_a_sentence(operator: Operator) -> None:
    ended = await asyncio.gather(*(operator(*arguments.split()) for arguments, _, _ in WRONG))
    for (arguments, code, sentence), end in zip(WRONG, ended, strict=True):
        assert (arguments, end.code, end.said) == (arguments, code, [])
        assert sentence in end.complained


async def test_a_tenant_is_not_made_twice(operator: Operator) -> None:
    await operator("tenants", "create", "blue")
    again = await operator("tenants", "create", "blue")
    assert (again.code, again.complained) == (1, "There is a tenant 'blue' already.\n")


async def test_lists_of_nothing_say_what_to_do(operator: Operator) -> None:
    for what in ("tenants", "keys", "users", "organizations"):
        ended = await operator(what, "list")
        assert (ended.code, ended.said) == (0, [])
        assert f"batchwright {what} create" in ended.complained


async def test_a_database_that_does_not_answer_is_named() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    ended = await batchwright("keys", "list", database_url=f"postgresql://{nowhere}/x")
    assert ended.code == 3
    assert nowhere in ended.complained
