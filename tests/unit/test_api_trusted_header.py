"""The tenant that a gateway names: the last value of the header, whatever its name."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from tests.fakes.api import House, error_of, open_house
from tests.fakes.keys import NOW


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house(auth="trusted_header", tenant_header="X-Team") as house:
        yield house


async def made_by(house: House, *teams: str) -> str:
    """The tenant of a file that came with these headers."""
    headers = [("X-Team", team) for team in teams]
    answer = await house.http.post(
        "/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return next(tenant for tenant, id in house.database.rows.files if id == answer.json()["id"])


@pytest.mark.parametrize(
    ("teams", "tenant"),
    [
        (["blue"], "blue"),
        (["evil", "blue"], "blue"),
        (["evil, blue"], "blue"),
        (["evil", "evil,\tblue "], "blue"),
        ([], "default"),
    ],
)
async def test_the_last_value_counts(house: House, teams: list[str], tenant: str) -> None:
    assert await made_by(house, *teams) == tenant


@pytest.mark.parametrize("team", ["", " ", "blue,", "a/b", "x" * 65])
async def test_a_tenant_that_cannot_be_is_refused(house: House, team: str) -> None:
    answer = await house.http.get("/v1/models", headers={"X-Team": team})
    assert (answer.status_code, error_of(answer).param) == (400, "X-Team")


async def test_a_header_of_another_name_says_nothing(house: House) -> None:
    await made_by(house, "blue")
    answer = await house.http.get("/v1/files", headers={"X-Tenant": "blue"})
    assert answer.json()["data"] == []


@pytest.mark.parametrize("auth", ["none", "trusted_header"])
async def test_without_a_default_tenant_a_request_has_to_name_one(auth: str) -> None:
    async with open_house(auth=auth, default_tenant="") as house:
        without = await house.http.get("/v1/files")
        named = await house.http.get("/v1/files", headers={"X-Tenant": "blue"})
        healthy = await house.http.get("/healthz")
    assert (without.status_code, error_of(without).code) == (401, "tenant_missing")
    assert named.status_code == healthy.status_code == 200


async def test_a_disabled_tenant_stays_outside_and_others_need_no_row(house: House) -> None:
    async def asked(team: str) -> httpx.Response:
        return await house.http.get("/v1/files", headers={"X-Team": team})

    for team in ("gone", "there"):
        await house.database.tenants.create(team, NOW)
    await house.database.tenants.disable("gone", NOW)
    refused = await asked("gone")
    assert (refused.status_code, error_of(refused).code) == (403, "tenant_disabled")
    assert [(await asked(team)).status_code for team in ("there", "stranger")] == [200, 200]
    await house.database.tenants.enable("gone")
    assert (await asked("gone")).status_code == 200


@pytest.fixture
async def scoped() -> AsyncGenerator[House]:
    async with open_house(auth="trusted_header", scopes_header="X-May", auth_failures_per_minute=0) as house:
        yield house


async def statuses(house: House, *values: str) -> tuple[int, int, int]:
    """Of a read, a write and a call of an operator's, with these values of the header."""
    headers = [("X-May", value) for value in values]
    calls = (("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/admin/rates"))
    answers = [await house.http.request(method, path, headers=headers) for method, path in calls]
    assert {error_of(answer).code for answer in answers if answer.status_code == 403} <= {"missing_scope"}
    read, write, admin = (answer.status_code for answer in answers)
    return read, write, admin


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        (["read"], (200, 403, 403)),
        (["read write"], (200, 400, 403)),  # allowed, and then refused for its body
        (["write"], (403, 400, 403)),
        (["admin"], (403, 403, 200)),
        (["openid  read\twrite admin"], (200, 400, 200)),
        (["admin", "read"], (200, 403, 403)),
        (["admin, read"], (200, 403, 403)),
        (["read", ""], (403, 403, 403)),
        (["READ reads"], (403, 403, 403)),
        ([], (403, 403, 403)),
    ],
)
async def test_a_gateway_says_what_a_caller_may_do_by_the_last_value_of_its_header(
    scoped: House, values: list[str], allowed: tuple[int, int, int]
) -> None:
    assert await statuses(scoped, *values) == allowed


async def test_a_gateway_that_names_no_header_of_scopes_lets_its_callers_do_everything(house: House) -> None:
    assert await statuses(house, "read") == (200, 400, 200)


async def test_a_scope_that_is_lacking_is_named_with_the_header(scoped: House) -> None:
    refused = await scoped.http.get("/v1/files")
    assert error_of(refused).message == (
        "The header X-May lacks the scope 'read', which GET on this path needs."
    )


async def test_the_description_names_the_header_of_the_settings(house: House) -> None:
    described = (await house.http.get("/openapi.json")).text
    assert '"X-Team"' in described
    assert "X-Tenant" not in described
