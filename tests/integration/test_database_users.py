"""What every database promises of users; `any_database` runs it on each."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from batchwright.database.base import DatabaseLike
from batchwright.database.errors import UnknownTenant, UnknownUser
from batchwright.database.quotas_base import SharedBudget, Spent
from batchwright.database.spent import spent_by_users
from batchwright.database.tenant_rows import KeyRow, UserRow
from batchwright.rules.api_keys import Kept, Scope
from tests.fakes.spent import tell_spent, this_day
from tests.integration.rows import START, after


async def a_key(database: DatabaseLike, id: str, *, tenant: str = "t", user: str | None = None) -> KeyRow:
    await database.tenants.create(tenant, START)
    row = KeyRow(id=id, tenant=tenant, prefix=f"p{id}", scopes=[Scope.READ], created_at=START, user_name=user)
    await database.api_keys.insert(row, Kept(b"salt", b"hash"))
    return row


async def two_users(database: DatabaseLike) -> None:
    """alice with the keys a1 and a2, bob with b1, each of `t`; another alice of `u` with a1 of hers."""
    for tenant in ("t", "u"):
        await database.tenants.create(tenant, START)
        assert await database.users.create(tenant, "alice", 100, START)
    assert await database.users.create("t", "bob", None, after(1))
    for key in ("a1", "a2"):
        await a_key(database, key, user="alice")
    await a_key(database, "b1", user="bob")
    await a_key(database, "u1", tenant="u", user="alice")


async def keys_of(database: DatabaseLike, tenant: str = "t") -> dict[str, list[str]]:
    return {row.name: row.keys for row in await database.users.all(tenant)}


async def test_a_user_is_made_once_and_listed_with_its_keys(any_database: DatabaseLike) -> None:
    await two_users(any_database)
    users = any_database.users
    assert not await users.create("t", "alice", 5, after(1))
    of_t = [
        UserRow(tenant="t", name="alice", created_at=START, tokens_per_day=100, keys=["a1", "a2"]),
        UserRow(tenant="t", name="bob", created_at=after(1), keys=["b1"]),
    ]
    of_u = UserRow(tenant="u", name="alice", created_at=START, tokens_per_day=100, keys=["u1"])
    assert await users.all("t") == of_t
    assert await users.all() == [*of_t, of_u]
    assert await users.all("v") == []
    limited = await any_database.quotas.limited_users()
    assert sorted(limited, key=lambda row: row.tenant) == [of_t[0], of_u]


async def test_there_is_no_user_of_a_tenant_that_nobody_made(any_database: DatabaseLike) -> None:
    with pytest.raises(UnknownTenant):
        await any_database.users.create("t", "alice", None, START)


async def test_keys_of_a_user_share_its_number_and_no_other_user_or_tenant_does(
    any_database: DatabaseLike,
) -> None:
    await two_users(any_database)
    await a_key(any_database, "n1")
    quotas = any_database.quotas
    await tell_spent(quotas, "w", Spent("t", "a1", 10), Spent("t", "b1", 7), Spent("t", "n1", 90))
    await tell_spent(quotas, "x", Spent("t", "a1", 3), Spent("t", "a2", 20), Spent("u", "u1", 50))
    await quotas.tell_spent("x", this_day() - timedelta(days=1), [Spent("t", "a1", 1000)])
    for key in ("a1", "a2"):
        assert await quotas.user_of("t", key) == SharedBudget("alice", 100, 33)
    assert await quotas.user_of("t", "b1") == SharedBudget("bob", None, 7)
    assert await quotas.user_of("u", "u1") == SharedBudget("alice", 100, 50)
    for tenant, key in (("t", "n1"), ("u", "a1"), ("t", "u1"), ("t", "none")):
        assert await quotas.user_of(tenant, key) is None
    found = await spent_by_users(quotas, await any_database.users.all(), this_day())
    assert [(row.tenant, row.name, tokens) for row, tokens in found] == [
        ("t", "alice", 33),
        ("t", "bob", 7),
        ("u", "alice", 50),
    ]


async def test_a_key_that_is_given_to_another_takes_what_it_used_today_with_it(
    any_database: DatabaseLike,
) -> None:
    await two_users(any_database)
    quotas, keys = any_database.quotas, any_database.api_keys
    await tell_spent(quotas, "w", Spent("t", "a1", 10), Spent("t", "a2", 20), Spent("t", "b1", 7))
    given = await keys.give("a1", "bob")
    assert given is not None
    assert given.user_name == "bob"
    assert await quotas.user_of("t", "a1") == SharedBudget("bob", None, 17)
    assert await quotas.user_of("t", "a2") == SharedBudget("alice", 100, 20)
    taken = await keys.give("pa2", None)
    assert taken is not None
    assert taken.user_name is None
    assert await quotas.user_of("t", "a2") is None
    assert await keys_of(any_database) == {"alice": [], "bob": ["a1", "b1"]}
    assert await keys.give("none", "bob") is None


async def test_a_revoked_key_counts_for_its_user_still(any_database: DatabaseLike) -> None:
    await two_users(any_database)
    await tell_spent(any_database.quotas, "w", Spent("t", "a1", 10), Spent("t", "a2", 20))
    await any_database.api_keys.revoke("a1", after(2))
    assert await any_database.quotas.user_of("t", "a2") == SharedBudget("alice", 100, 30)
    assert (await keys_of(any_database))["alice"] == ["a1", "a2"]


async def test_a_user_that_the_keys_tenant_has_not_got_is_refused_and_nothing_changes(
    any_database: DatabaseLike,
) -> None:
    await two_users(any_database)
    await any_database.users.create("u", "carol", None, START)
    for user in ("carol", "nobody", ""):
        with pytest.raises(UnknownUser) as refused:
            await any_database.api_keys.give("a1", user)
        assert (refused.value.tenant, refused.value.name) == ("t", user)
        with pytest.raises(UnknownUser):
            await a_key(any_database, "new", user=user)
    row = KeyRow(id="new", tenant="v", prefix="new", scopes=[Scope.READ], created_at=START)
    with pytest.raises(UnknownTenant):
        await any_database.api_keys.insert(row, Kept(b"salt", b"hash"))
    assert await keys_of(any_database) == {"alice": ["a1", "a2"], "bob": ["b1"]}
    assert [row.id for row in await any_database.api_keys.all("t")] == ["a1", "a2", "b1"]


async def test_a_user_has_exactly_the_keys_that_are_named_of_its_tenant(any_database: DatabaseLike) -> None:
    await two_users(any_database)
    assert await any_database.users.own("t", "bob", ["a1", "b1", "a1", "u1", "none"])
    assert await keys_of(any_database) == {"alice": ["a2"], "bob": ["a1", "b1"]}
    assert await keys_of(any_database, "u") == {"alice": ["u1"]}
    assert await any_database.users.own("t", "bob", ["a2"])
    assert await keys_of(any_database) == {"alice": [], "bob": ["a2"]}
    assert not await any_database.users.own("t", "nobody", ["a2"])
    assert await keys_of(any_database) == {"alice": [], "bob": ["a2"]}


async def test_a_user_is_limited_and_goes_and_its_keys_stay(any_database: DatabaseLike) -> None:
    await two_users(any_database)
    users, quotas = any_database.users, any_database.quotas
    assert await users.limit("t", "bob", 50)
    assert not await users.limit("u", "bob", 50)
    assert await quotas.user_of("t", "b1") == SharedBudget("bob", 50, 0)
    assert await users.limit("t", "alice", None)
    assert [(row.tenant, row.name) for row in await quotas.limited_users()].count(("t", "alice")) == 0
    assert await users.delete("t", "alice")
    assert not await users.delete("t", "alice")
    assert [row.user_name for row in await any_database.api_keys.all("t")] == [None, None, "bob"]
    assert await keys_of(any_database, "u") == {"alice": ["u1"]}
    assert await users.create("t", "alice", 5, after(3))
    assert (await keys_of(any_database))["alice"] == []


async def test_of_a_user_that_goes_while_it_gets_keys_nothing_is_left_behind(
    any_database: DatabaseLike,
) -> None:
    await two_users(any_database)

    async def give(key: str) -> None:
        with suppress(UnknownUser):
            await any_database.api_keys.give(key, "bob")

    await asyncio.gather(give("a1"), any_database.users.delete("t", "bob"), give("a2"))
    assert "bob" not in await keys_of(any_database)
    assert {row.user_name for row in await any_database.api_keys.all("t")} <= {"alice", None}


async def test_users_that_take_each_others_keys_at_once_do_not_wait_for_each_other(
    any_database: DatabaseLike,
) -> None:
    await two_users(any_database)
    names = [f"k{number}" for number in range(6)]
    for name in names:
        await a_key(any_database, name)
    users, keys = any_database.users, any_database.api_keys
    for _ in range(10):
        for user, own in (("alice", names[:3]), ("bob", names[3:])):
            assert await users.own("t", user, own)
        await asyncio.gather(
            users.own("t", "alice", names[3:]), users.own("t", "bob", names[:3]), keys.give("k0", "bob")
        )
        found = await keys_of(any_database)
        assert sorted(found["alice"] + found["bob"]) == names
