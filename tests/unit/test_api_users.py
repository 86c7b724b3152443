"""/admin/users: made, changed, listed and deleted by an operator; what a key's user has left."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from api.limits import LimitsObject
from api.users import DeletedUser, UserList, UserObject
from batchwright.database.quotas_base import Spent
from batchwright.rules.quotas import MOST
from tests.fakes.api import House, error_of, open_house, read
from tests.fakes.keys import made_key
from tests.fakes.spent import tell_spent

PATH = "/admin/users"


async def put(house: House, user: str, **fields: object) -> httpx.Response:
    return await house.http.put(f"{PATH}/{user}", json=fields)


async def changed(house: House, user: str, **fields: object) -> tuple[int | None, list[str]]:
    found = read(await put(house, user, **fields), UserObject)
    return found.tokens_per_day, found.keys


async def keys(house: House, tenant: str, count: int) -> list[str]:
    """Ids."""
    for _ in range(count):
        await made_key(house.database, tenant)
    return [row.id for row in await house.database.api_keys.all(tenant)]


async def test_a_user_is_made_shown_with_what_its_keys_used_and_deleted() -> None:
    async with open_house() as house:
        one, two, other = await keys(house, "blue", 3)
        spent = [
            Spent("blue", one, 30),
            Spent("blue", two, 5),
            Spent("blue", other, 900),
            Spent("blue", "", 7),
        ]
        await house.database.quotas.tell_spent("w", datetime.now(UTC).date(), spent)
        made = read(await put(house, "blue/alice", tokens_per_day=90, keys=[one, two]), UserObject)
        assert (made.tenant, made.name, made.tokens_per_day, made.tokens_used) == ("blue", "alice", 90, 35)
        assert sorted(made.keys) == sorted([one, two])
        await house.database.tenants.create("red", datetime.now(UTC))
        empty = read(await put(house, "red/alice"), UserObject)
        assert (empty.tokens_per_day, empty.tokens_used, empty.keys) == (None, 0, [])
        assert read(await house.http.get(PATH), UserList).data == [made, empty]
        assert read(await house.http.get(PATH + "?tenant=red"), UserList).data == [empty]
        assert read(await house.http.get(f"{PATH}/blue/alice"), UserObject) == made
        assert read(await house.http.delete(f"{PATH}/blue/alice"), DeletedUser).name == "alice"
        assert read(await house.http.get(PATH), UserList).data == [empty]
        assert {row.user_name for row in await house.database.api_keys.all("blue")} == {None}


async def test_what_is_not_named_stays_and_keys_come_from_whoever_had_them() -> None:
    async with open_house() as house:
        one, two = await keys(house, "blue", 2)
        await put(house, "blue/alice", tokens_per_day=90, keys=[one])
        assert await changed(house, "blue/alice") == (90, [one])
        assert await changed(house, "blue/alice", tokens_per_day=80) == (80, [one])
        assert await changed(house, "blue/bob", keys=[two]) == (None, [two])
        assert await changed(house, "blue/bob", keys=[one, one]) == (None, [one])
        assert await changed(house, "blue/alice") == (80, [])
        assert await changed(house, "blue/alice", tokens_per_day=0, keys=[two]) == (None, [two])
        assert await changed(house, "blue/bob", tokens_per_day=7, keys=[]) == (7, [])
        assert await changed(house, "blue/bob", tokens_per_day=None) == (None, [])


async def test_a_user_of_a_tenant_that_nobody_made_is_not_found() -> None:
    async with open_house() as house:
        refused = await put(house, "nobody/alice", tokens_per_day=5)
        assert (refused.status_code, error_of(refused).param) == (404, "tenant")
        assert house.database.rows.users == {}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_user_that_is_not_there_is_not_found(method: str) -> None:
    async with open_house() as house:
        await put(house, "blue/alice")
        refused = await house.http.request(method, f"{PATH}/blue/bob")
    assert (refused.status_code, error_of(refused).param) == (404, "name")
    assert "'blue' has no user with name 'bob'" in error_of(refused).message


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize(("path", "param"), [("a%20b/alice", "tenant"), ("blue/a%20b", "name")])
async def test_a_name_that_cannot_be_is_refused(method: str, path: str, param: str) -> None:
    async with open_house() as house:
        refused = await house.http.request(method, f"{PATH}/{path}", json={})
        listed = await house.http.get(PATH + "?tenant=a%20b")
    for answer, of in ((refused, param), (listed, "tenant")):
        assert (answer.status_code, error_of(answer).code, error_of(answer).param) == (
            400,
            "invalid_value",
            of,
        )


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tokens_per_day": -1}, "invalid_value", "tokens_per_day"),
        ({"tokens_per_day": MOST + 1}, "invalid_value", "tokens_per_day"),
        ({"tokens_per_day": "9"}, "invalid_type", "tokens_per_day"),
        ({"keys": None}, "invalid_type", "keys"),
        ({"keys": ["{own}", 7]}, "invalid_type", "keys[1]"),
        ({"keys": ["{own}", "key_none"]}, "invalid_value", "keys[1]"),
        ({"keys": ["{other}"]}, "invalid_value", "keys[0]"),
        ({"keys": ["a"] * 1001}, "invalid_value", "keys"),
        ({"budget": 1}, "unknown_parameter", "budget"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_made(
    body: dict[str, object], code: str, param: str
) -> None:
    async with open_house() as house:
        [own], [other] = await keys(house, "blue", 1), await keys(house, "red", 1)
        text = json.dumps(body).replace("{own}", own).replace("{other}", other)
        refused = await house.http.put(f"{PATH}/blue/alice", content=text)
        assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (400, code, param)
        assert house.database.rows.users == {}


async def test_limits_show_what_the_user_of_the_key_has_left() -> None:
    async with open_house(auth="api_key") as house:
        key = await made_key(house.database, "blue", user="alice")
        stranger = await made_key(house.database, "blue")
        [row] = [row for row in await house.database.api_keys.all("blue") if row.user_name]
        await house.database.users.limit("blue", "alice", 100)
        await tell_spent(house.database.quotas, "w", Spent("blue", row.id, 30), Spent("blue", "", 50))
        answers = [
            await house.http.get("/v1/x/limits", headers={"Authorization": f"Bearer {of.text}"})
            for of in (key, stranger)
        ]
        mine, theirs = [read(answer, LimitsObject) for answer in answers]
    assert theirs.user is None
    assert mine.user is not None
    assert (mine.user.name, mine.user.limit, mine.user.used, mine.user.left) == ("alice", 100, 30, 70)
