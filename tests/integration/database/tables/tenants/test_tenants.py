"""Tenants and their keys.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio

import pytest

from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection
from batchwright.database.errors import UnknownTenant
from batchwright.database.records import ApiKeyRow, StoredApiKey, TenantRow
from batchwright.rules.tenants.api_keys import SecretHash, hash_secret, new_key
from batchwright.rules.tenants.scopes import Scope
from tests.integration.database.rows import START, after

SECRET_HASH = SecretHash(b"salt", b"hash")


def key(name: str, tenant: str = "blue", **more: object) -> ApiKeyRow:
    return ApiKeyRow(
        id=f"key_{name}", tenant=tenant, prefix=name, scopes=[Scope.READ], created_at=START
    ).model_copy(update=more)


async def test_a_tenant_is_created_once(any_database: Database) -> None:
    tenants = any_database.tenants
    created = await asyncio.gather(*(tenants.create("blue", START) for _ in range(3)))
    assert sorted(created) == [False, False, True]
    await tenants.create("Amber", after(1))
    blue = TenantRow(name="blue", created_at=START)
    assert await tenants.get("blue") == blue
    assert await tenants.get("red") is None
    assert await tenants.all() == [TenantRow(name="Amber", created_at=after(1)), blue]


async def test_a_disabled_tenant_keeps_its_first_disabled_time_until_it_is_enabled(
    any_database: Database,
) -> None:
    tenants = any_database.tenants
    await tenants.create("blue", START)
    assert await tenants.disable("red", after(1)) is await tenants.enable("red") is None
    for seconds in (1, 2):
        row = await tenants.disable("blue", after(seconds))
        assert row == TenantRow(name="blue", created_at=START, disabled_at=after(1))
    assert await tenants.enable("blue") == TenantRow(name="blue", created_at=START)


async def test_a_key_is_found_by_its_prefix_with_its_stored_hash(any_database: Database) -> None:
    await any_database.tenants.create("blue", START)
    row = key("a", scopes=[Scope.WRITE, Scope.ADMIN], label="nightly", expires_at=after(60))
    secret_hash = hash_secret(new_key())
    await any_database.api_keys.insert(row, secret_hash)
    await any_database.api_keys.insert(row, secret_hash)
    assert await any_database.api_keys.find("a") == StoredApiKey(key=row, secret_hash=secret_hash)
    assert await any_database.api_keys.find("key_a") is None
    await any_database.tenants.disable("blue", after(1))
    found = await any_database.api_keys.find("a")
    assert found is not None
    assert found.tenant_disabled_at == after(1)


async def test_a_key_of_an_unknown_tenant_is_refused(any_database: Database) -> None:
    with pytest.raises(UnknownTenant, match="batchwright tenants create red"):
        await any_database.api_keys.insert(key("a", "red"), SECRET_HASH)
    assert await any_database.api_keys.all() == []


async def test_keys_are_listed_of_one_tenant_or_of_all(any_database: Database) -> None:
    for tenant in ("blue", "amber"):
        await any_database.tenants.create(tenant, START)
    rows = [key("c", "amber", created_at=after(5)), key("b"), key("a", created_at=after(1))]
    for row in rows:
        await any_database.api_keys.insert(row, SECRET_HASH)
    assert await any_database.api_keys.all() == rows
    assert await any_database.api_keys.all("blue") == rows[1:]
    assert await any_database.api_keys.all("red") == []


@pytest.mark.parametrize("named", ["key_a", "a"])
async def test_a_key_is_revoked_once_by_id_or_prefix(any_database: Database, named: str) -> None:
    await any_database.tenants.create("blue", START)
    for name in ("a", "b"):
        await any_database.api_keys.insert(key(name), SECRET_HASH)
    for seconds in (1, 2):
        assert await any_database.api_keys.revoke(named, after(seconds)) == key("a", revoked_at=after(1))
    assert await any_database.api_keys.revoke("key_c", after(1)) is None
    assert await any_database.api_keys.all() == [key("a", revoked_at=after(1)), key("b")]


async def test_the_last_use_is_recorded_at_most_once_a_minute(any_database: Database) -> None:
    await any_database.tenants.create("blue", START)
    for name in ("a", "b"):
        await any_database.api_keys.insert(key(name), SECRET_HASH)
    await any_database.api_keys.record_uses({})
    for seconds in (0, 59):
        await any_database.api_keys.record_uses({"key_a": after(seconds), "key_c": after(seconds)})
        assert await any_database.api_keys.all() == [key("a", last_used_at=START), key("b")]
    await any_database.api_keys.record_uses({"key_a": after(60), "key_b": after(61)})
    used = [row.last_used_at for row in await any_database.api_keys.all()]
    assert used == [after(60), after(61)]


async def test_a_session_finds_its_key_until_it_expires_or_is_deleted(any_database: Database) -> None:
    await any_database.tenants.create("blue", START)
    await any_database.api_keys.insert(key("a"), SECRET_HASH)
    sessions, stored = any_database.sessions, await any_database.api_keys.find("a")
    await sessions.insert(b"1", "key_a", START, after(10))
    assert await sessions.find(b"1", after(9)) == stored
    assert await sessions.find(b"1", after(10)) is await sessions.find(b"2", START) is None
    await sessions.insert(b"2", "key_a", after(10), after(20))  # deletes the expired session
    assert await sessions.find(b"1", after(9)) is None
    await sessions.delete(b"2")
    await sessions.delete(b"2")
    assert await sessions.find(b"2", after(11)) is None


async def test_a_session_of_one_key_affects_no_session_of_another(any_database: Database) -> None:
    keys, sessions = any_database.api_keys, any_database.sessions
    for name, tenant in (("a", "blue"), ("b", "red")):
        await any_database.tenants.create(tenant, START)
        await keys.insert(key(name, tenant), SECRET_HASH)
        await sessions.insert(name.encode(), f"key_{name}", START, after(10))
    await any_database.tenants.disable("red", after(1))
    for name, disabled_at in (("a", None), ("b", after(1))):
        found = await sessions.find(name.encode(), after(2))
        assert found == await keys.find(name)
        assert found is not None
        assert found.tenant_disabled_at == disabled_at
    for _ in range(2):  # a repeat changes nothing
        await sessions.insert(b"c", "key_a", after(9), after(20))
    await sessions.delete(b"a")
    found = [await sessions.find(token, after(9)) for token in (b"a", b"b", b"c")]
    assert [each and each.key.id for each in found] == [None, "key_b", "key_a"]


@pytest.mark.integration
async def test_a_sign_in_deletes_a_limited_number_of_expired_sessions_the_oldest_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.tenants.create("blue", START)
    await database.api_keys.insert(key("a"), SECRET_HASH)
    for token, seconds in ((b"late", 2), (b"early", 1)):
        await database.sessions.insert(token, "key_a", START, after(seconds))
    monkeypatch.setattr("batchwright.database.tables.tenants.sessions._MAX_DELETED", 1)
    await database.sessions.insert(b"new", "key_a", after(5), after(9))
    found = [await database.sessions.find(token, START) for token in (b"late", b"early", b"new")]
    assert [each is not None for each in found] == [True, False, True]


@pytest.mark.integration
async def test_a_sign_in_does_not_wait_for_a_process_that_deletes_expired_sessions(
    database: Database, connection: DatabaseConnection
) -> None:
    await database.tenants.create("blue", START)
    await database.api_keys.insert(key("a"), SECRET_HASH)
    await database.sessions.insert(b"old", "key_a", START, after(1))
    async with connection.transaction():
        await connection.execute("SELECT FROM sessions FOR UPDATE")
        await database.sessions.insert(b"new", "key_a", after(5), after(9))
    assert await database.sessions.find(b"new", after(5)) is not None
