"""Quotas at the API: refused when used up, shown, changed by an operator."""

from datetime import UTC, datetime

import httpx
import pytest

from api.limits import LimitsObject
from api.objects import ModelPage
from api.quotas import QuotaList
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.quotas_base import Spent
from batchwright.rules.quotas import Enqueued, Limits, Quota
from tests.fakes.api import LINE, House, error_of, open_house, read
from tests.fakes.spent import tell_spent

BODY = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
UPLOAD = {"filename": "a", "purpose": "user_data", "mime_type": "a/b"}


async def put(house: House, **fields: object) -> httpx.Response:
    return await house.http.put("/admin/quotas", json={"tenant": "default", **fields})


async def send(house: House, size: int, **headers: str) -> httpx.Response:
    return await house.http.post(
        "/v1/files", files={"file": ("a", b"x" * size)}, data={"purpose": "user_data"}, headers=headers
    )


async def limits(house: House, tenant: str = "default") -> dict[Quota, tuple[int | None, int, int | None]]:
    answer = await house.http.get("/v1/x/limits", headers={"X-Tenant": tenant})
    return {one.quota: (one.limit, one.used, one.left) for one in read(answer, LimitsObject).data}


def refusals(house: House, quota: Quota) -> float:
    labels = {"tenant": "default", "quota": quota.value}
    return house.metrics.registry.get_sample_value("batchwright_quota_refusals_total", labels) or 0.0


async def test_limits_show_what_is_allowed_used_and_left() -> None:
    async with open_house(max_stored_bytes=1000, max_enqueued_lines=10) as house:
        await house.upload()
        batch = await house.create()
        await house.database.quotas.reserve("default", batch.id, Enqueued(4, 44), Limits())
        assert await limits(house) == {
            Quota.LIVE_BATCHES: (50, 1, 49),
            Quota.STORED_BYTES: (1000, 2 * len(LINE), 1000 - 2 * len(LINE)),
            Quota.ENQUEUED_LINES: (10, 4, 6),
            Quota.ENQUEUED_TOKENS: (None, 44, None),
            Quota.REQUESTS_PER_MINUTE: (None, 0, None),
            Quota.TOKENS_PER_DAY: (None, 0, None),
        }
        assert (await limits(house, "another"))[Quota.ENQUEUED_LINES] == (10, 0, 10)


async def test_limits_show_what_is_left_of_the_budget_of_the_day() -> None:
    async with open_house(max_tokens_per_day=1000) as house:
        await tell_spent(house.database.quotas, "w", Spent("default", "", 300), Spent("other", "", 9))
        assert (await limits(house))[Quota.TOKENS_PER_DAY] == (1000, 300, 700)
        await put(house, tokens_per_day=200)
        assert (await limits(house))[Quota.TOKENS_PER_DAY] == (200, 300, 0)
        await put(house, tokens_per_day=0)
        assert (await limits(house))[Quota.TOKENS_PER_DAY] == (None, 300, None)
        assert read(await house.http.get("/v1/x/limits"), LimitsObject).key is None


async def test_limits_show_the_budget_of_the_tenants_organization() -> None:
    async with open_house() as house:
        organizations, quotas = house.database.organizations, house.database.quotas
        assert read(await house.http.get("/v1/x/limits"), LimitsObject).organization is None
        await organizations.create("group", 1000, datetime.now(UTC))
        for tenant in ("default", "other"):
            await organizations.add("group", tenant)
        await tell_spent(quotas, "w", Spent("default", "", 300), Spent("other", "", 9))
        shared = read(await house.http.get("/v1/x/limits"), LimitsObject).organization
        assert shared is not None
        assert (shared.name, shared.quota) == ("group", Quota.TOKENS_PER_DAY)
        assert (shared.limit, shared.used, shared.left) == (1000, 309, 691)
        of_other = read(await house.http.get("/admin/quotas/other"), LimitsObject)
        assert of_other.organization == shared
        await organizations.limit("group", None)
        shared = read(await house.http.get("/v1/x/limits"), LimitsObject).organization
        assert shared is not None
        assert (shared.limit, shared.used, shared.left) == (None, 309, None)


async def test_what_is_over_a_lowered_limit_leaves_nothing_rather_than_less() -> None:
    async with open_house() as house:
        await house.upload()
        await put(house, stored_bytes=1)
        assert (await limits(house))[Quota.STORED_BYTES] == (1, len(LINE), 0)


async def test_a_tenants_own_number_of_live_batches_stands_before_the_setting() -> None:
    async with open_house(max_live_batches=1) as house:
        await put(house, live_batches=2)
        before = refusals(house, Quota.LIVE_BATCHES)
        answers = [await house.post(BODY) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert refusals(house, Quota.LIVE_BATCHES) == before + 1


async def test_a_minutes_requests_are_counted_for_each_tenant_and_refused_beyond() -> None:
    async with open_house(max_requests_per_minute=2) as house:
        answers = [await house.http.get("/v1/batches") for _ in range(3)]
        other = await house.http.get("/v1/batches", headers={"X-Tenant": "other"})
        probe = await house.http.get("/healthz")
    assert [answer.status_code for answer in (*answers, other, probe)] == [200, 200, 429, 200, 200]
    refused = answers[2]
    assert (error_of(refused).type, error_of(refused).code) == ("requests", "rate_limit_exceeded")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert refused.headers["ratelimit-policy"] == '"requests";q=2;w=60'
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("POST", "/v1/uploads"),
        ("GET", "/v1/models"),
        ("GET", "/v1/x/limits"),
    ],
)
async def test_every_route_of_tenants_counts(method: str, path: str) -> None:
    async with open_house(max_requests_per_minute=1) as house:
        await house.http.request(method, path)
        assert (await house.http.request(method, path)).status_code == 429


async def test_operators_are_not_counted() -> None:
    async with open_house(max_requests_per_minute=1) as house:
        answers = [await house.http.get("/admin/quotas") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}


async def test_a_database_that_cannot_count_refuses_nothing_by_itself() -> None:
    async with open_house(max_requests_per_minute=1) as house:
        house.database.rows.failing = DatabaseUnavailable("away")
        assert {(await house.http.get("/v1/batches")).status_code for _ in range(3)} == {503}


async def test_a_file_is_refused_once_it_is_more_than_the_tenant_may_store() -> None:
    async with open_house(max_stored_bytes=100) as house:
        assert (await send(house, 60)).status_code == 200
        refused = await send(house, 41)
        assert (refused.status_code, error_of(refused).code) == (429, "rate_limit_exceeded")
        assert (refused.headers["x-should-retry"], "retry-after" in refused.headers) == ("false", True)
        assert "of at most 100, 60 are taken" in error_of(refused).message
        assert len(house.storage.objects) == 1
        assert (await send(house, 40)).status_code == 200
        assert (await send(house, 0)).status_code == 429


async def test_a_deleted_file_leaves_its_room() -> None:
    async with open_house(max_stored_bytes=100) as house:
        file = (await send(house, 100)).json()["id"]
        assert (await send(house, 100)).status_code == 429
        await house.http.delete(f"/v1/files/{file}")
        assert (await send(house, 100)).status_code == 200


async def test_a_repeat_with_its_key_gets_the_first_answer_also_when_nothing_is_left() -> None:
    async with open_house(max_stored_bytes=100) as house:
        key = {"Idempotency-Key": "k"}
        first, again = await send(house, 100, **key), await send(house, 100, **key)
        assert (again.status_code, again.json()) == (200, first.json())
        other = await send(house, 1, **{"Idempotency-Key": "other"})
        assert (other.status_code, len(house.storage.objects)) == (429, 1)
        body = {**UPLOAD, "bytes": 1}
        assert (await house.http.post("/v1/uploads", json=body, headers=key)).status_code == 429


async def test_an_upload_takes_its_announced_room_at_once_and_gives_it_back_when_cancelled() -> None:
    async with open_house(max_stored_bytes=100) as house:
        key = {"Idempotency-Key": "k"}
        first = await house.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100}, headers=key)
        again = await house.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100}, headers=key)
        assert (again.status_code, again.json()) == (200, first.json())
        assert (await house.http.post("/v1/uploads", json={**UPLOAD, "bytes": 1})).status_code == 429
        await house.http.post(f"/v1/uploads/{first.json()['id']}/cancel")
        assert (await house.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100})).status_code == 200


async def test_an_upload_that_becomes_a_file_takes_its_room_once() -> None:
    async with open_house(max_stored_bytes=100) as house:
        upload = (await house.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100})).json()["id"]
        part = await house.http.post(f"/v1/uploads/{upload}/parts", files={"data": ("d", b"x" * 100)})
        done = await house.http.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part.json()["id"]]})
        assert done.status_code == 200
        assert (await limits(house))[Quota.STORED_BYTES] == (100, 100, 0)


async def test_only_models_that_a_tenant_may_use_are_there_for_it() -> None:
    async with open_house() as house:
        await put(house, models=["org/qwen:7b", "later"])
        assert [model.id for model in read(await house.http.get("/v1/models"), ModelPage).data] == [
            "org/qwen:7b"
        ]
        assert (await house.http.get("/v1/models/org/qwen:7b")).status_code == 200
        refused = await house.http.get("/v1/models/llama")
        assert (refused.status_code, error_of(refused).code) == (404, "model_not_found")
        other = await house.http.get("/v1/models/llama", headers={"X-Tenant": "other"})
        assert other.status_code == 200
        assert read(await house.http.get("/v1/x/limits"), LimitsObject).models == ["later", "org/qwen:7b"]
        await put(house, models=None)
        assert (await house.http.get("/v1/models/llama")).status_code == 200


async def test_quotas_are_changed_field_by_field_listed_and_taken_back() -> None:
    async with open_house(max_enqueued_tokens=7) as house:
        await put(house, live_batches=3, models=["b", "a"])
        page = read(await put(house, enqueued_lines=0), QuotaList)
        assert page.defaults.enqueued_tokens == 7
        [own] = page.data
        assert (own.tenant, own.live_batches, own.enqueued_lines, own.models) == ("default", 3, 0, ["a", "b"])
        assert read(await house.http.get("/admin/quotas"), QuotaList) == page
        shown = read(await house.http.get("/admin/quotas/default"), LimitsObject)
        assert [(one.quota.value, one.limit) for one in shown.data][:3] == [
            ("live_batches", 3),
            ("stored_bytes", None),
            ("enqueued_lines", None),
        ]
        assert read(await put(house, live_batches=None), QuotaList).data[0].live_batches is None
        assert read(await house.http.delete("/admin/quotas?tenant=default"), QuotaList).data == []
        assert (await house.http.delete("/admin/quotas?tenant=default")).status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "tenant"),
        ({"tenant": "a/b"}, "invalid_value", "tenant"),
        ({"tenant": 1}, "invalid_type", "tenant"),
        ({"tenant": "t", "lines": 1}, "unknown_parameter", "lines"),
        ({"tenant": "t", "enqueued_lines": -1}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "enqueued_lines": 2**53}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "enqueued_lines": 2**70}, "invalid_value", "enqueued_lines"),
        ({"tenant": "t", "stored_bytes": "1"}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "stored_bytes": 1.5}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "stored_bytes": True}, "invalid_type", "stored_bytes"),
        ({"tenant": "t", "models": "a"}, "invalid_type", "models"),
        ({"tenant": "t", "models": [1]}, "invalid_type", "models[0]"),
        ({"tenant": "t", "models": ["a\x00"]}, "invalid_value", "models[0]"),
        ({"tenant": "t", "models": [""]}, "invalid_value", "models"),
        ({"tenant": "t", "models": ["a" * 257]}, "invalid_value", "models"),
        ({"tenant": "t", "models": ["a"] * 1001}, "invalid_value", "models"),
    ],
)
async def test_what_is_wrong_is_named(body: dict[str, object], code: str, param: str) -> None:
    async with open_house() as house:
        refused = await house.http.put("/admin/quotas", json=body)
        assert (refused.status_code, error_of(refused).code, error_of(refused).param) == (400, code, param)
        assert house.database.rows.quotas == {}


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/admin/quotas"), ("GET", "/admin/quotas/a%20b")])
async def test_a_tenant_that_cannot_be_is_refused(method: str, path: str) -> None:
    async with open_house() as house:
        refused = await house.http.request(method, path)
    assert (refused.status_code, error_of(refused).param) == (400, "tenant")
