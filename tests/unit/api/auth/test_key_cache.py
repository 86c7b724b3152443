"""Authentication by API key: cached keys, the limit on wrong keys per client address, and recorded uses of
keys.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from batchwright.api.auth import key_cache
from batchwright.api.auth.authenticators import ApiKeyAuthenticator
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import StoredApiKey
from batchwright.rules.tenants.api_keys import ApiKey, new_key
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics
from tests.background_tasks import key_uses_recorded
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import NOW, create_key
from tests.fakes.tables.tenants.tenants import MemoryApiKeys


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    # Fixtures with equal settings share an application, which would remember the failures of other tests.
    async with open_api(auth="api_key", auth_failures_per_minute=0) as api:
        yield api


class Client:
    """An authenticator with its own clock. `attempt` calls it as a client would."""

    def __init__(self, api: ApiFixture, **settings: object) -> None:
        self.seconds = 1000.0
        self.rows = api.database.rows
        deps = ApiDependencies(
            api.settings.model_copy(update=settings),
            api.database,
            api.storage,
            api.temporal,
            api.served,
            Metrics(),
            clock=lambda: NOW + timedelta(seconds=self.seconds),
        )
        self.authenticator = ApiKeyAuthenticator(deps, lambda: self.seconds)

    async def attempt(
        self, key: ApiKey | str, address: str = "192.0.2.1", forwarded: Sequence[str] = ()
    ) -> int:
        """Authenticate with the key. Return 0 for success, or the status of the error."""
        text = key.text if isinstance(key, ApiKey) else key
        headers = [(b"authorization", b"Bearer " + text.encode())]
        headers += [(b"x-forwarded-for", value.encode()) for value in forwarded]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/files",
            "headers": headers,
            "client": (address, 1),
        }
        try:
            await self.authenticator.authenticate(scope)
        except ApiError as error:
            return error.status
        return 0


@pytest.fixture
def client(api: ApiFixture) -> Client:
    return Client(api)


async def test_a_key_is_looked_up_once_in_two_seconds(api: ApiFixture, client: Client) -> None:
    key = await create_key(api.database, "blue")
    for _ in range(5):
        assert await client.attempt(key) == 0
    assert client.rows.key_lookups == 1
    client.seconds += 2
    assert await client.attempt(key) == 0
    assert client.rows.key_lookups == 2


async def test_of_too_many_keys_the_one_that_was_verified_longest_ago_is_dropped(
    api: ApiFixture, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "MAX_CACHED_KEYS", 2)
    first, second, third = [await create_key(api.database, "blue") for _ in range(3)]
    for key in (first, second):
        assert await client.attempt(key) == 0
    client.seconds += 2
    for key, lookups in ((first, 3), (third, 4), (first, 4), (third, 4), (second, 5), (first, 6)):
        assert await client.attempt(key) == 0
        assert client.rows.key_lookups == lookups


class CountedUses(MemoryApiKeys):
    """The fake table of API keys. It records the ids of the keys whose use is stored."""

    def __init__(self, api: ApiFixture) -> None:
        super().__init__(api.database.rows)
        self.ids: list[str] = []

    async def record_uses(self, uses: Mapping[str, datetime]) -> None:
        self.ids += uses


async def test_of_too_many_recorded_uses_the_oldest_is_forgotten(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "_MAX_RECORDED_KEYS", 2)
    prefixes = [(await create_key(api.database, "blue")).prefix for _ in range(3)]
    before = NOW - timedelta(hours=1)
    keys = [api.database.rows.api_keys[each].key for each in prefixes]
    first, second, third = [key.model_copy(update={"last_used_at": before}) for key in keys]
    table = CountedUses(api)
    recorder = key_cache.KeyUsageRecorder(table)
    later = NOW + timedelta(minutes=1)
    for key, at in (
        (first, NOW),
        (second, NOW),
        (first, later),
        (third, later),
        (third, later),
        (first, later),
        (second, later),
    ):
        recorder.record(key, at)
    await key_uses_recorded()
    assert table.ids == [first.id, second.id, first.id, third.id, second.id]


async def test_a_revoked_key_and_a_disabled_tenant_are_refused_within_two_seconds(
    api: ApiFixture, client: Client
) -> None:
    key, other = await create_key(api.database, "blue"), await create_key(api.database, "red")
    assert await client.attempt(key) == await client.attempt(other) == 0
    await api.database.api_keys.revoke(key.prefix, NOW)
    await api.database.tenants.disable("red", NOW)
    client.seconds += 2
    assert await client.attempt(key) == await client.attempt(other) == 401
    await api.database.tenants.enable("red")
    assert await client.attempt(other) == 0


async def test_an_expired_key_is_refused_at_once(api: ApiFixture, client: Client) -> None:
    key = await create_key(api.database, "blue", expires_at=NOW + timedelta(seconds=1001))
    assert await client.attempt(key) == 0
    client.seconds += 1
    assert await client.attempt(key) == 401


async def test_wrong_keys_are_limited_by_address_and_allowed_again_later(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=3)
    assert [await client.attempt(new_key()) for _ in range(5)] == [401, 401, 401, 429, 429]
    assert await client.attempt("garbage") == 401
    assert await client.attempt(new_key(), "192.0.2.2") == 401
    lookups = client.rows.key_lookups
    assert await client.attempt(new_key()) == 429
    assert client.rows.key_lookups == lookups
    client.seconds += 20
    assert [await client.attempt(new_key()) for _ in range(2)] == [401, 429]


async def test_a_key_that_was_valid_before_is_not_refused_because_of_wrong_keys_from_its_address(
    api: ApiFixture,
) -> None:
    client = Client(api, auth_failures_per_minute=1)
    known, late = await create_key(api.database, "blue"), await create_key(api.database, "red")
    assert await client.attempt(known) == 0
    assert [await client.attempt(new_key()) for _ in range(2)] == [401, 429]
    client.seconds += 10
    assert await client.attempt(known) == 0
    assert await client.attempt(late) == 429
    assert await client.attempt(ApiKey(known.prefix, new_key().secret)) == 429
    client.seconds += 50
    assert await client.attempt(late) == 0


async def test_text_that_is_not_a_key_is_not_counted_and_not_looked_up(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    assert {await client.attempt(text) for text in ("", "sk-proj-1", "bw_x_y", "a b") for _ in range(30)} == {
        401
    }
    assert client.rows.key_lookups == 0
    assert await client.attempt(await create_key(api.database, "blue")) == 0


async def test_a_hundred_wrong_keys_a_minute_do_not_block_a_valid_key_that_is_new_to_the_process(
    api: ApiFixture,
) -> None:
    client = Client(api, auth_failures_per_minute=Settings.model_fields["auth_failures_per_minute"].default)
    late = await create_key(api.database, "blue")
    for _ in range(100):
        assert await client.attempt(new_key()) == await client.attempt("garbage") == 401
    assert await client.attempt(late) == 0


async def test_valid_keys_do_not_count_against_the_limit(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    assert [await client.attempt(await create_key(api.database, "blue")) for _ in range(5)] == [0] * 5
    assert [await client.attempt(new_key()) for _ in range(2)] == [401, 429]


async def test_concurrent_wrong_keys_do_not_exceed_the_limit(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, find = Client(api, auth_failures_per_minute=3), api.database.api_keys.find

    async def slow(prefix: str) -> StoredApiKey | None:
        await asyncio.sleep(0)
        return await find(prefix)

    monkeypatch.setattr(api.database.api_keys, "find", slow)
    statuses = await asyncio.gather(*(client.attempt(new_key()) for _ in range(10)))
    assert (statuses.count(401), statuses.count(429), client.rows.key_lookups) == (3, 7, 3)


async def test_an_unavailable_database_does_not_count_against_the_limit(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    key = await create_key(api.database, "blue")
    api.database.rows.failing = DatabaseUnavailable("away")
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            await client.attempt(key)
    api.database.rows.failing = None
    assert await client.attempt(key) == 0


@pytest.mark.parametrize(
    ("forwarded", "warnings"),
    [([], 0), (["203.0.113.9"], 1), (["203.0.113.9, 198.51.100.1", "203.0.113.9"], 1), (["192.0.2.1"], 0)],
)
async def test_an_untrusted_proxy_is_logged_once(
    api: ApiFixture, caplog: pytest.LogCaptureFixture, forwarded: list[str], warnings: int
) -> None:
    """192.0.2.1 is the address of the connection, or the address that a trusted proxy forwards."""
    client = Client(api)
    for _ in range(3):
        await client.attempt("none", forwarded=forwarded)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
    assert ("BATCHWRIGHT_TRUSTED_PROXIES" in caplog.text) == bool(warnings)


async def test_ipv6_addresses_of_one_network_count_as_one_client(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    assert await client.attempt(new_key(), "2001:db8::1") == 401
    assert await client.attempt(new_key(), "2001:db8::ffff:2") == 429
    assert await client.attempt(new_key(), "2001:db8:0:1::1") == 401


async def test_the_last_use_is_written_once_a_minute_and_never_fails_a_request(
    api: ApiFixture, client: Client
) -> None:
    key = await create_key(api.database, "blue")

    async def last_used() -> datetime | None:
        await key_uses_recorded()
        [row] = await api.database.api_keys.all()
        return row.last_used_at

    assert await client.attempt(key) == 0
    first = await last_used()
    assert first == NOW + timedelta(seconds=1000)
    client.seconds += 59
    assert (await client.attempt(key), await last_used()) == (0, first)
    client.seconds += 1
    assert (await client.attempt(key), await last_used()) == (0, NOW + timedelta(seconds=1060))


async def test_a_last_use_that_cannot_be_written_is_logged(
    api: ApiFixture, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    key = await create_key(api.database, "blue")
    assert await client.attempt(key) == 0
    api.database.rows.failing = DatabaseUnavailable("away")
    await key_uses_recorded()
    assert [record.message for record in caplog.records] == ["use of a key was not recorded"]


async def test_a_revoked_key_that_was_good_before_is_limited_like_any_wrong_one(api: ApiFixture) -> None:
    client = Client(api, auth_failures_per_minute=1)
    key = await create_key(api.database, "blue")
    assert await client.attempt(key) == 0
    await api.database.api_keys.revoke(key.prefix, NOW)
    client.seconds += 2
    assert [await client.attempt(key) for _ in range(3)] == [401, 401, 429]
