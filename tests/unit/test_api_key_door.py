"""What the door remembers of keys and of who sent wrong ones, and what is noted of their use."""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

import pytest

from api.doors import KeyDoor
from api.errors import ApiError
from api.services import Services
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.api_keys import ApiKey, new_key
from batchwright.telemetry.metrics import Metrics
from tests.fakes.api import House, open_house
from tests.fakes.keys import NOW, made_key


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    # Houses of equal settings are one application, which would remember the failures of other tests.
    async with open_house(auth="api_key", auth_failures_per_minute=0) as house:
        yield house


class Door:
    """A door with a clock of its own; `opens` asks it as a client would."""

    def __init__(self, house: House, **settings: object) -> None:
        self.seconds = 1000.0
        self.rows = house.database.rows
        services = Services(
            house.settings.model_copy(update=settings),
            house.database,
            house.storage,
            house.temporal,
            house.served,
            Metrics(),
            clock=lambda: NOW + timedelta(seconds=self.seconds),
        )
        self.door = KeyDoor(services, lambda: self.seconds)

    async def opens(self, key: ApiKey | str, address: str = "192.0.2.1") -> int:
        """0, or the status of the refusal."""
        text = key.text if isinstance(key, ApiKey) else key
        headers = [(b"authorization", b"Bearer " + text.encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/files",
            "headers": headers,
            "client": (address, 1),
        }
        try:
            await self.door.admit(scope)
        except ApiError as error:
            return error.status
        return 0


@pytest.fixture
def door(house: House) -> Door:
    return Door(house)


async def test_a_key_is_looked_up_once_in_two_seconds(house: House, door: Door) -> None:
    key = await made_key(house.database, "blue")
    for _ in range(5):
        assert await door.opens(key) == 0
    assert door.rows.key_lookups == 1
    door.seconds += 2
    assert await door.opens(key) == 0
    assert door.rows.key_lookups == 2


async def test_a_revoked_key_and_a_disabled_tenant_are_out_within_two_seconds(
    house: House, door: Door
) -> None:
    key, other = await made_key(house.database, "blue"), await made_key(house.database, "red")
    assert await door.opens(key) == await door.opens(other) == 0
    await house.database.api_keys.revoke(key.prefix, NOW)
    await house.database.tenants.disable("red", NOW)
    door.seconds += 2
    assert await door.opens(key) == await door.opens(other) == 401
    await house.database.tenants.enable("red")
    assert await door.opens(other) == 0


async def test_a_key_that_expires_is_out_at_once(house: House, door: Door) -> None:
    key = await made_key(house.database, "blue", expires_at=NOW + timedelta(seconds=1001))
    assert await door.opens(key) == 0
    door.seconds += 1
    assert await door.opens(key) == 401


async def test_wrong_keys_are_limited_by_address_and_allowed_again_later(house: House) -> None:
    door = Door(house, auth_failures_per_minute=3)
    assert [await door.opens(new_key()) for _ in range(5)] == [401, 401, 401, 429, 429]
    assert await door.opens("garbage") == 429
    assert await door.opens(new_key(), "192.0.2.2") == 401
    lookups = door.rows.key_lookups
    assert await door.opens(new_key()) == 429
    assert door.rows.key_lookups == lookups
    door.seconds += 20
    assert [await door.opens(new_key()) for _ in range(2)] == [401, 429]


async def test_a_key_that_was_good_before_is_not_shut_out_by_its_neighbours(house: House) -> None:
    door = Door(house, auth_failures_per_minute=1)
    known, late = await made_key(house.database, "blue"), await made_key(house.database, "red")
    assert await door.opens(known) == 0
    assert [await door.opens(new_key()) for _ in range(2)] == [401, 429]
    door.seconds += 10
    assert await door.opens(known) == 0
    assert await door.opens(late) == 429
    assert await door.opens(ApiKey(known.prefix, new_key().secret)) == 429
    door.seconds += 50
    assert await door.opens(late) == 0


async def test_addresses_of_one_network_of_ipv6_are_one_client(house: House) -> None:
    door = Door(house, auth_failures_per_minute=1)
    assert await door.opens(new_key(), "2001:db8::1") == 401
    assert await door.opens(new_key(), "2001:db8::ffff:2") == 429
    assert await door.opens(new_key(), "2001:db8:0:1::1") == 401


async def test_the_last_use_is_written_once_a_minute_and_never_fails_a_request(
    house: House, door: Door
) -> None:
    key = await made_key(house.database, "blue")

    async def last_used() -> datetime | None:
        await door.door.uses.written()
        [row] = await house.database.api_keys.all()
        return row.last_used_at

    assert await door.opens(key) == 0
    first = await last_used()
    assert first == NOW + timedelta(seconds=1000)
    door.seconds += 59
    assert (await door.opens(key), await last_used()) == (0, first)
    door.seconds += 1
    assert (await door.opens(key), await last_used()) == (0, NOW + timedelta(seconds=1060))


async def test_a_last_use_that_cannot_be_written_is_logged(
    house: House, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    key = await made_key(house.database, "blue")
    assert await door.opens(key) == 0
    house.database.rows.failing = DatabaseUnavailable("away")
    await door.door.uses.written()
    assert [record.message for record in caplog.records] == ["a key's last use was not noted"]
