"""/admin/keys: operators create API keys, list and revoke them."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.contracts.api_objects.audit_log import AuditLogPage
from batchwright.contracts.api_objects.operator import CreatedKey, KeyList, KeyObject
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "ops", scopes=[Scope.ADMIN])
        api.http.headers["Authorization"] = f"Bearer {key.text}"
        await create_key(api.database, "blue", scopes=[Scope.READ])
        yield api


async def create(api: ApiFixture, **fields: object) -> CreatedKey:
    return read(await api.http.post("/admin/keys", json={"tenant": "blue", **fields}), CreatedKey)


async def test_a_new_key_opens_what_its_scopes_allow_until_it_is_revoked(api: ApiFixture) -> None:
    created = await create(api, label="for the nightly run", expires_in_days=30)
    assert created.scopes == [Scope.READ, Scope.WRITE]
    assert created.expires_at == created.created_at + 30 * 86_400
    headers = {"Authorization": f"Bearer {created.secret_key}"}
    assert (await api.http.get("/v1/batches", headers=headers)).status_code == 200
    assert (await api.http.get("/admin/keys", headers=headers)).status_code == 403
    revoked = read(await api.http.post(f"/admin/keys/{created.id}/revoke"), KeyObject)
    again = read(await api.http.post(f"/admin/keys/{created.id}/revoke"), KeyObject)
    assert revoked.revoked_at is not None
    assert again == revoked


async def test_keys_are_listed_without_their_secrets(api: ApiFixture) -> None:
    created = await create(api, scopes=["viewer"], label="eyes only")
    response = await api.http.get("/admin/keys", params={"tenant": "blue"})
    assert created.secret_key.rpartition("_")[2] not in response.text
    listed = read(response, KeyList).data
    assert [(each.tenant, each.label) for each in listed] == [("blue", ""), ("blue", "eyes only")]
    assert created.secret_key.startswith(listed[1].prefix + "_")
    assert {each.tenant for each in read(await api.http.get("/admin/keys"), KeyList).data} == {"ops", "blue"}


async def test_the_audit_log_names_the_key_and_not_its_secret(api: ApiFixture) -> None:
    created = await create(api, label="audited")
    await api.http.post(f"/admin/keys/{created.id}/revoke")
    response = await api.http.get("/admin/audit-log", params={"order": "asc"})
    assert created.secret_key.rpartition("_")[2] not in response.text
    made, revoked = read(response, AuditLogPage).data
    assert (made.action, made.target.id, made.target.tenant) == ("key.create", created.id, "blue")
    state = {"scopes": ["read", "write"], "label": "audited", "expires_at": None, "revoked_at": None}
    assert (made.before, made.after) == (None, state)
    assert (revoked.action, revoked.before) == ("key.revoke", state)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"tenant": "nobody"}, 404, "tenant"),
        ({"tenant": "no/tenant"}, 400, "tenant"),
        ({"scopes": []}, 400, "scopes"),
        ({"scopes": ["root"]}, 400, "scopes"),
        ({"scopes": "read"}, 400, "scopes"),
        ({"label": "two\nlines"}, 400, "label"),
        ({"label": "x" * 201}, 400, "label"),
        ({"expires_in_days": 0}, 400, "expires_in_days"),
        ({"expires_in_days": "30"}, 400, "expires_in_days"),
        ({"more": 1}, 400, "more"),
    ],
)
async def test_a_wrong_field_is_refused_and_creates_nothing(
    api: ApiFixture, fields: dict[str, object], status: int, param: str
) -> None:
    before = len(api.database.rows.api_keys)
    response = await api.http.post("/admin/keys", json={"tenant": "blue", **fields})
    assert (response.status_code, error_of(response).param) == (status, param)
    assert len(api.database.rows.api_keys) == before


@pytest.mark.parametrize("key_id", ["key_0", "key_" + "0" * 32, "%00", "bw_x"])
async def test_an_unknown_key_is_not_found(api: ApiFixture, key_id: str) -> None:
    assert (await api.http.post(f"/admin/keys/{key_id}/revoke")).status_code == 404


async def test_an_api_that_checks_no_keys_creates_none() -> None:
    async with open_api() as api:
        await api.database.tenants.create("blue", api.database.rows.clock())
        assert (await api.http.post("/admin/keys", json={"tenant": "blue"})).status_code == 409
        assert api.database.rows.api_keys == {}
