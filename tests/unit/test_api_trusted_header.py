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
