"""Authentication by the headers of a trusted gateway. If there are several tenant headers, the last one
counts.
"""

from collections.abc import AsyncGenerator

import httpx
import pytest

from batchwright.api.auth import authenticators
from batchwright.api.auth.caller import SCOPE_TENANT
from batchwright.database.records import TenantRow
from batchwright.telemetry.context import bind_fields, current_fields
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.api_keys import NOW
from tests.fakes.tables.tenants.tenants import MemoryTenants


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="trusted_header", tenant_header="X-Team") as api:
        yield api


async def create_batch(api: ApiFixture, *teams: str) -> str:
    """Upload a file with the tenant headers `teams`, and return its tenant."""
    headers = [("X-Team", team) for team in teams]
    answer = await api.http.post(
        "/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return next(tenant for tenant, id in api.database.rows.files if id == answer.json()["id"])


@pytest.mark.parametrize(
    ("teams", "tenant"),
    [
        (["blue"], "blue"),
        (["evil", "blue"], "blue"),
        (["evil, blue"], "blue"),
        (["evil", "evil,\tblue "], "blue"),
    ],
)
async def test_the_last_value_of_the_header_counts(api: ApiFixture, teams: list[str], tenant: str) -> None:
    assert await create_batch(api, *teams) == tenant


@pytest.mark.parametrize("team", ["", " ", "blue,", "a/b", "x" * 65])
async def test_an_invalid_tenant_name_is_refused(api: ApiFixture, team: str) -> None:
    answer = await api.http.get("/v1/models", headers={"X-Team": team})
    assert (answer.status_code, error_of(answer).param) == (400, "X-Team")


async def test_a_header_with_another_name_is_ignored(api: ApiFixture) -> None:
    await create_batch(api, "blue")
    answer = await api.http.get("/v1/files", headers={"X-Team": "red", "X-Tenant": "blue"})
    assert answer.json()["data"] == []


@pytest.mark.parametrize(
    ("auth", "default"), [("none", ""), ("trusted_header", ""), ("trusted_header", "blue")]
)
async def test_without_a_default_tenant_a_request_must_name_one(auth: str, default: str) -> None:
    async with open_api(auth=auth, default_tenant=default) as api:
        without = await api.http.get("/v1/files")
        named = await api.http.get("/v1/files", headers={"X-Tenant": "blue"})
        healthy = await api.http.get("/healthz")
    assert (without.status_code, error_of(without).code) == (401, "tenant_missing")
    assert named.status_code == healthy.status_code == 200


async def test_a_disabled_tenant_is_refused_and_others_need_no_row(api: ApiFixture) -> None:
    async def respond(team: str) -> httpx.Response:
        return await api.http.get("/v1/files", headers={"X-Team": team})

    for team in ("gone", "there"):
        await api.database.tenants.create(team, NOW)
    await api.database.tenants.disable("gone", NOW)
    refused = await respond("gone")
    assert (refused.status_code, error_of(refused).code) == (403, "tenant_disabled")
    assert [(await respond(team)).status_code for team in ("there", "stranger")] == [200, 200]
    await api.database.tenants.enable("gone")
    assert (await respond("gone")).status_code == 200


@pytest.fixture
async def scoped() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="trusted_header", tenant_header="X-Team", scopes_header="X-May") as api:
        yield api


async def statuses(api: ApiFixture, *values: str) -> tuple[int, int, int]:
    """Return the statuses of a read, a write and an admin request with these values of the scopes header."""
    headers = [("X-Team", "blue"), *(("X-May", value) for value in values)]
    calls = (("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/admin/rates"))
    answers = [await api.http.request(method, path, headers=headers) for method, path in calls]
    assert {error_of(answer).code for answer in answers if answer.status_code == 403} <= {"missing_scope"}
    read, write, admin = (answer.status_code for answer in answers)
    return read, write, admin


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        (["read"], (200, 403, 403)),
        (["read write"], (200, 400, 403)),  # allowed, then rejected because of its body
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
async def test_the_last_value_of_the_scopes_header_decides(
    scoped: ApiFixture, values: list[str], allowed: tuple[int, int, int]
) -> None:
    assert await statuses(scoped, *values) == allowed


async def test_without_a_scopes_header_callers_can_read_and_write_but_not_administer(
    api: ApiFixture,
) -> None:
    assert await statuses(api, "read") == (200, 400, 403)


async def test_a_missing_scope_is_named_with_the_header(scoped: ApiFixture) -> None:
    refused = await scoped.http.get("/v1/files", headers={"X-Team": "blue"})
    assert error_of(refused).message == (
        "The header X-May lacks the scope 'read', which GET on this path needs."
    )


async def test_the_description_names_the_header_of_the_settings(api: ApiFixture) -> None:
    described = (await api.http.get("/openapi.json")).text
    assert '"X-Team"' in described
    assert "X-Tenant" not in described


class LookedUpTenants(MemoryTenants):
    """The fake table of tenants. It records which tenants are looked up."""

    def __init__(self, api: ApiFixture) -> None:
        super().__init__(api.database.rows)
        self.names: list[str] = []

    async def get(self, name: str) -> TenantRow | None:
        self.names.append(name)
        return await super().get(name)


async def test_of_too_many_tenants_the_one_that_was_found_enabled_longest_ago_is_looked_up_again(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticators, "_MAX_TENANTS", 2)
    tenants, now = LookedUpTenants(api), 1000.0
    authenticator = authenticators.TrustedHeaderAuthenticator(tenants, api.settings, lambda: now)
    for tenant, seconds in (("a", 0), ("b", 1), ("a", 2), ("c", 2), ("a", 2), ("b", 2)):
        now = 1000.0 + seconds
        await authenticator.authenticate(scope := request_of(tenant))
        assert scope[SCOPE_TENANT] == tenant
    assert tenants.names == ["a", "b", "a", "c", "b"]


async def test_the_tenant_of_a_refused_caller_is_known(api: ApiFixture) -> None:
    """The log and the audit log contain the tenant of a request that was refused."""
    authenticator = authenticators.TrustedHeaderAuthenticator(api.database.tenants, api.settings)
    scope = {**request_of("blue"), "path": "/admin/tenants"}
    with bind_fields():
        with pytest.raises(authenticators.AccessDenied):
            await authenticator.authenticate(scope)
        assert current_fields() == {"tenant": "blue"}
    assert scope[SCOPE_TENANT] == "blue"


def request_of(tenant: str) -> dict[str, object]:
    headers = [(b"x-team", tenant.encode())]
    return {"type": "http", "method": "GET", "path": "/v1/files", "headers": headers}
