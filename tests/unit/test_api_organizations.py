"""/admin/organizations: made, changed, listed and deleted by an operator."""

from datetime import UTC, datetime

import httpx
import pytest

from api.organizations import DeletedOrganization, OrganizationList, OrganizationObject
from batchwright.database.quotas_base import Spent
from batchwright.rules.quotas import MOST
from tests.fakes.api import House, error_of, open_house, read

PATH = "/admin/organizations"


async def put(house: House, name: str, **fields: object) -> httpx.Response:
    return await house.http.put(f"{PATH}/{name}", json=fields)


async def changed(house: House, name: str, **fields: object) -> tuple[int | None, list[str]]:
    found = read(await put(house, name, **fields), OrganizationObject)
    return found.tokens_per_day, found.tenants


async def test_an_organization_is_made_shown_with_what_its_tenants_used_and_deleted() -> None:
    async with open_house() as house:
        spent = [Spent("blue", "", 30), Spent("red", "key", 5), Spent("free", "", 900)]
        await house.database.quotas.tell_spent("w", datetime.now(UTC).date(), spent)
        made = read(await put(house, "acme", tokens_per_day=90, tenants=["red", "blue"]), OrganizationObject)
        assert (made.tokens_per_day, made.tokens_used, made.tenants) == (90, 35, ["blue", "red"])
        other = read(await put(house, "zero"), OrganizationObject)
        assert (other.tokens_per_day, other.tokens_used, other.tenants) == (None, 0, [])
        assert read(await house.http.get(PATH), OrganizationList).data == [made, other]
        assert read(await house.http.get(f"{PATH}/acme"), OrganizationObject) == made
        assert read(await house.http.delete(f"{PATH}/acme"), DeletedOrganization).name == "acme"
        assert read(await house.http.get(PATH), OrganizationList).data == [other]


async def test_what_is_not_named_stays_and_tenants_are_all_there_are() -> None:
    async with open_house() as house:
        await put(house, "acme", tokens_per_day=90, tenants=["blue", "red"])
        assert await changed(house, "acme") == (90, ["blue", "red"])
        assert await changed(house, "acme", tokens_per_day=80) == (80, ["blue", "red"])
        assert await changed(house, "acme", tenants=["red", "white", "red"]) == (80, ["red", "white"])
        assert await changed(house, "acme", tokens_per_day=0) == (None, ["red", "white"])
        assert await changed(house, "acme", tokens_per_day=7, tenants=[]) == (7, [])
        assert await changed(house, "acme", tokens_per_day=None) == (None, [])
        assert await changed(house, "other", tenants=["blue"]) == (None, ["blue"])


async def test_a_tenant_of_another_organization_is_a_conflict_that_changes_nothing() -> None:
    async with open_house() as house:
        await put(house, "acme", tenants=["blue"])
        await put(house, "other", tokens_per_day=5, tenants=["red"])
        for name in ("other", "new"):
            refused = await put(house, name, tokens_per_day=9, tenants=["white", "blue"])
            assert (refused.status_code, error_of(refused).param) == (409, "tenants")
            assert "'blue' is in the organization 'acme'" in error_of(refused).message
            assert refused.headers["x-should-retry"] == "false"
        assert await changed(house, "other") == (5, ["red"])
        assert (await house.http.get(f"{PATH}/new")).status_code == 404


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_organization_that_is_not_there_is_not_found(method: str) -> None:
    async with open_house() as house:
        refused = await house.http.request(method, f"{PATH}/nobody")
    assert (refused.status_code, error_of(refused).param) == (404, "name")
    assert "'nobody'" in error_of(refused).message


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_name_that_cannot_be_is_refused(method: str) -> None:
    async with open_house() as house:
        refused = await house.http.request(method, f"{PATH}/a%20b", json={})
    assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (
        400,
        "invalid_value",
        "name",
    )


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tokens_per_day": -1}, "invalid_value", "tokens_per_day"),
        ({"tokens_per_day": MOST + 1}, "invalid_value", "tokens_per_day"),
        ({"tokens_per_day": "9"}, "invalid_type", "tokens_per_day"),
        ({"tenants": None}, "invalid_type", "tenants"),
        ({"tenants": "blue"}, "invalid_type", "tenants"),
        ({"tenants": ["blue", 7]}, "invalid_type", "tenants[1]"),
        ({"tenants": ["a b"]}, "invalid_value", "tenants[0]"),
        ({"tenants": ["a"] * 1001}, "invalid_value", "tenants"),
        ({"budget": 1}, "unknown_parameter", "budget"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_made(
    body: dict[str, object], code: str, param: str
) -> None:
    async with open_house() as house:
        refused = await house.http.put(f"{PATH}/acme", json=body)
        assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (400, code, param)
        assert house.database.rows.organizations == {}
