"""Quotas of tenants: how the API enforces them, and how it shows them to tenants."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest

from batchwright.contracts.api_objects.openai import BatchObject, ModelPage
from batchwright.contracts.api_objects.quotas import LimitsObject, QuotaList
from batchwright.contracts.terms import Quota
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import IdempotencyClaim
from batchwright.database.tables.tenants.quota_records import DailyUsage, RequestCount
from batchwright.rules.tenants.quotas import EnqueuedWork, QuotaLimits
from batchwright.temporal import TemporalUnavailable
from tests.fakes.api import LINE, ApiFixture, error_of, open_api, read
from tests.fakes.budget_groups import organization
from tests.fakes.storage import MemoryWriter
from tests.fakes.tables.uploads import MemoryIdempotency
from tests.fakes.token_usage import publish_usage
from tests.unit.api.routes.admin.quota_requests import limits, put

BODY = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


UPLOAD = {"filename": "a", "purpose": "user_data", "mime_type": "a/b"}


async def send(api: ApiFixture, size: int, **headers: str) -> httpx.Response:
    return await api.http.post(
        "/v1/files", files={"file": ("a", b"x" * size)}, data={"purpose": "user_data"}, headers=headers
    )


def refusals(api: ApiFixture, quota: Quota) -> float:
    labels = {"tenant": "default", "quota": quota.value}
    return api.metrics.registry.get_sample_value("batchwright_quota_refusals_total", labels) or 0.0


async def test_limits_show_limit_usage_and_remainder() -> None:
    async with open_api(max_stored_bytes=1000, max_enqueued_lines=10) as api:
        await api.upload()
        batch = await api.create()
        await api.database.quotas.reserve("default", batch.id, EnqueuedWork(4, 44), QuotaLimits())
        assert await limits(api) == {
            Quota.LIVE_BATCHES: (50, 1, 49),
            Quota.STORED_BYTES: (1000, 2 * len(LINE), 1000 - 2 * len(LINE)),
            Quota.ENQUEUED_LINES: (10, 4, 6),
            Quota.ENQUEUED_TOKENS: (None, 44, None),
            Quota.REQUESTS_PER_MINUTE: (None, 0, None),
            Quota.TOKENS_PER_DAY: (None, 0, None),
            Quota.COST_PER_DAY: (None, "0", None),
            Quota.WEBHOOKS: (20, 0, 20),
        }
        assert (await limits(api, "another"))[Quota.ENQUEUED_LINES] == (10, 0, 10)


async def test_limits_show_the_remaining_budget_of_the_day() -> None:
    async with open_api(max_tokens_per_day=1000) as api:
        await publish_usage(
            api.database.quotas, "w", DailyUsage("default", "", 300), DailyUsage("other", "", 9)
        )
        assert (await limits(api))[Quota.TOKENS_PER_DAY] == (1000, 300, 700)
        await put(api, tokens_per_day=200)
        assert (await limits(api))[Quota.TOKENS_PER_DAY] == (200, 300, 0)
        await put(api, tokens_per_day=0)
        assert (await limits(api))[Quota.TOKENS_PER_DAY] == (None, 300, None)
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).key == []


async def test_limits_show_the_remaining_budget_of_cost_with_every_digit() -> None:
    async with open_api(max_cost_per_day="1.5") as api:
        spent = DailyUsage("default", "", 300, 10**12 + 1)
        await publish_usage(api.database.quotas, "w", spent, DailyUsage("other", "", 9, 9))
        assert (await limits(api))[Quota.COST_PER_DAY] == ("1.5", "1.000000000001", "0.499999999999")
        await put(api, cost_per_day="0.25")
        assert (await limits(api))[Quota.COST_PER_DAY] == ("0.25", "1.000000000001", "0")
        for none in (0, "0.0"):
            await put(api, cost_per_day=none)
            assert (await limits(api))[Quota.COST_PER_DAY] == (None, "1.000000000001", None)
        shown = read(await api.http.get("/admin/quotas"), QuotaList)
        assert (shown.defaults.cost_per_day, shown.data[0].cost_per_day) == ("1.5", "0")
        await put(api, cost_per_day=None)
        assert (await limits(api))[Quota.COST_PER_DAY][0] == "1.5"


async def test_limits_show_the_budget_of_the_organization_of_the_tenant() -> None:
    async with open_api() as api:
        groups, quotas, group = api.database.budget_groups, api.database.quotas, organization("group")
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).groups == []
        await groups.create(group, 1000, datetime.now(UTC))
        await groups.add(group, ["default", "other"])
        await publish_usage(quotas, "w", DailyUsage("default", "", 300), DailyUsage("other", "", 9))
        shared, of_cost = read(await api.http.get("/v1/x/limits"), LimitsObject).groups
        assert (of_cost.name, of_cost.quota) == ("group", Quota.COST_PER_DAY)
        assert (shared.kind, shared.name, shared.quota) == ("organization", "group", Quota.TOKENS_PER_DAY)
        assert (shared.limit, shared.used, shared.left) == (1000, 309, 691)
        of_other = read(await api.http.get("/admin/quotas/other"), LimitsObject)
        assert of_other.groups == [shared, of_cost]
        await groups.limit(group, tokens_per_day=0)
        shared, _ = read(await api.http.get("/v1/x/limits"), LimitsObject).groups
        assert (shared.limit, shared.used, shared.left) == (None, 309, None)


async def test_the_remainder_of_a_limit_below_the_usage_is_zero() -> None:
    async with open_api() as api:
        await api.upload()
        await put(api, stored_bytes=1)
        assert (await limits(api))[Quota.STORED_BYTES] == (1, len(LINE), 0)


async def test_the_live_batch_quota_of_a_tenant_overrides_the_setting() -> None:
    async with open_api(max_live_batches=1) as api:
        await put(api, live_batches=2)
        before = refusals(api, Quota.LIVE_BATCHES)
        answers = [await api.post(BODY) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert refusals(api, Quota.LIVE_BATCHES) == before + 1


async def test_requests_per_minute_are_counted_per_tenant_and_refused_above_the_limit() -> None:
    async with open_api(max_requests_per_minute=2) as api:
        answers = [await api.http.get("/v1/batches") for _ in range(3)]
        other = await api.http.get("/v1/batches", headers={"X-Tenant": "other"})
        probe = await api.http.get("/healthz")
    assert [answer.status_code for answer in (*answers, other, probe)] == [200, 200, 429, 200, 200]
    refused = answers[2]
    assert (error_of(refused).type, error_of(refused).code) == ("requests", "rate_limit_exceeded")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert refused.headers["ratelimit-policy"] == '"requests";q=2;w=60'
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(("left", "retry_after"), [(59.2, "60"), (12.0, "12"), (0.3, "1"), (0.0, "1")])
async def test_a_client_may_try_again_when_the_minute_has_ended(
    monkeypatch: pytest.MonkeyPatch, left: float, retry_after: str
) -> None:
    async def count(tenant: str) -> RequestCount:
        return RequestCount(3, left)

    async with open_api(max_requests_per_minute=2) as api:
        monkeypatch.setattr(api.database.quotas, "count_request", count)
        refused = await api.http.get("/v1/batches")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, retry_after)
    assert f"Try again in {retry_after} s." in error_of(refused).message


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
async def test_every_tenant_route_counts_towards_the_request_limit(method: str, path: str) -> None:
    async with open_api(max_requests_per_minute=1) as api:
        await api.http.request(method, path)
        assert (await api.http.request(method, path)).status_code == 429


async def test_operator_requests_do_not_count_towards_the_request_limit() -> None:
    async with open_api(max_requests_per_minute=1) as api:
        answers = [await api.http.get("/admin/quotas") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}


async def test_an_unavailable_database_does_not_cause_a_429() -> None:
    async with open_api(max_requests_per_minute=1) as api:
        api.database.rows.failing = DatabaseUnavailable("away")
        assert {(await api.http.get("/v1/batches")).status_code for _ in range(3)} == {503}


async def test_a_file_above_the_stored_bytes_quota_is_refused() -> None:
    async with open_api(max_stored_bytes=100) as api:
        assert (await send(api, 60)).status_code == 200
        refused = await send(api, 41)
        assert (refused.status_code, error_of(refused).code) == (429, "rate_limit_exceeded")
        assert (refused.headers["x-should-retry"], "retry-after" in refused.headers) == ("false", True)
        assert "of at most 100, 60 are taken" in error_of(refused).message
        assert len(api.storage.objects) == 1
        assert (await send(api, 40)).status_code == 200
        assert (await send(api, 0)).status_code == 429


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize("path", ["/v1/files", "/v1/messages/batches"])
async def test_no_more_of_a_file_is_stored_than_the_quota_allows(
    monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    content = b"x" * 1_000_000
    form = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n'
    start = form % (b"purpose", b"") + b"user_data\r\n" + form % (b"file", b'; filename="a"')
    if path == "/v1/messages/batches":
        content = b'{"custom_id":"%d","params":{"text":"' + content + b'"}}'
        start = b'{"requests":['
    written: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield start
        for number in range(10):
            yield content.replace(b"%d", b"%d" % number) + b"," * (path != "/v1/files")

    async def write(_: MemoryWriter, data: bytes | bytearray | memoryview) -> None:
        written.append(len(data))

    monkeypatch.setattr(MemoryWriter, "write", write)
    types = {"Content-Type": "multipart/form-data; boundary=b", "anthropic-version": "2023-06-01"}
    async with open_api(max_stored_bytes=1_500_000) as api:
        refused = await api.http.post(path, content=body(), headers=types | headers)
        assert (refused.status_code, len(written)) == (429, 1)
        assert (api.storage.objects, api.database.rows.files) == ({}, {})


async def test_a_deleted_file_releases_its_stored_bytes() -> None:
    async with open_api(max_stored_bytes=100) as api:
        file = (await send(api, 100)).json()["id"]
        assert (await send(api, 100)).status_code == 429
        await api.http.delete(f"/v1/files/{file}")
        assert (await send(api, 100)).status_code == 200


async def test_a_repeat_with_its_idempotency_key_gets_the_first_response_even_without_remaining_quota() -> (
    None
):
    async with open_api(max_stored_bytes=100) as api:
        key = {"Idempotency-Key": "k"}
        first, again = await send(api, 100, **key), await send(api, 100, **key)
        assert (again.status_code, again.json()) == (200, first.json())
        other = await send(api, 1, **{"Idempotency-Key": "other"})
        assert (other.status_code, len(api.storage.objects)) == (429, 1)
        body = {**UPLOAD, "bytes": 1}
        assert (await api.http.post("/v1/uploads", json=body, headers=key)).status_code == 429


async def test_an_upload_reserves_its_announced_bytes_and_releases_them_when_cancelled() -> None:
    async with open_api(max_stored_bytes=100) as api:
        key = {"Idempotency-Key": "k"}
        first = await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100}, headers=key)
        again = await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100}, headers=key)
        assert (again.status_code, again.json()) == (200, first.json())
        assert (await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 1})).status_code == 429
        await api.http.post(f"/v1/uploads/{first.json()['id']}/cancel")
        assert (await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100})).status_code == 200


async def test_a_completed_upload_counts_its_bytes_once() -> None:
    async with open_api(max_stored_bytes=100) as api:
        upload = (await api.http.post("/v1/uploads", json={**UPLOAD, "bytes": 100})).json()["id"]
        part = await api.http.post(f"/v1/uploads/{upload}/parts", files={"data": ("d", b"x" * 100)})
        done = await api.http.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part.json()["id"]]})
        assert done.status_code == 200
        assert (await limits(api))[Quota.STORED_BYTES] == (100, 100, 0)


async def test_a_tenant_sees_only_the_models_that_it_may_use() -> None:
    async with open_api() as api:
        await put(api, models=["org/qwen:7b", "later"])
        assert [model.id for model in read(await api.http.get("/v1/models"), ModelPage).data] == [
            "org/qwen:7b"
        ]
        assert (await api.http.get("/v1/models/org/qwen:7b")).status_code == 200
        refused = await api.http.get("/v1/models/llama")
        assert (refused.status_code, error_of(refused).code) == (404, "model_not_found")
        other = await api.http.get("/v1/models/llama", headers={"X-Tenant": "other"})
        assert other.status_code == 200
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).models == ["later", "org/qwen:7b"]
        await put(api, models=None)
        assert (await api.http.get("/v1/models/llama")).status_code == 200


async def test_a_tenant_may_not_use_a_priority_above_its_quota() -> None:
    async with open_api() as api:
        await api.upload()
        [own] = read(await put(api, max_priority=2), QuotaList).data
        assert own.max_priority == 2
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).max_priority == 2
        refused = await api.post({**BODY, "x_batchwright": {"priority": 3}})
        assert (refused.status_code, error_of(refused).param) == (400, "x_batchwright.priority")
        assert "3 is above 2, the highest priority that you may use" in error_of(refused).message
        allowed = read(await api.post({**BODY, "x_batchwright": {"priority": 2}}), BatchObject)
        without = await api.create()
        assert [one.x_batchwright.priority for one in (allowed, without)] == [2, 2]
        await put(api, max_priority=None)
        assert (await api.create()).x_batchwright.priority == 3
        assert read(await api.http.get("/v1/x/limits"), LimitsObject).max_priority == 5


async def test_batches_are_queued_with_the_tenants_weight_at_their_creation() -> None:
    async with open_api(tenant_weights={"default": 4.0}) as api:
        await api.upload()
        await put(api, weight=2)
        own = await api.create()
        await put(api, weight=None)
        of_settings = await api.create()
        orders = {row.order.batch_id: row.order for row in api.database.rows.batches.values()}
        assert (orders[own.id].weight, orders[own.id].fairness_weight) == (4.0, 2.0)
        assert orders[of_settings.id].fairness_weight == 4.0


async def test_a_batch_that_temporal_refused_does_not_count_as_live() -> None:
    async with open_api(max_live_batches=1) as api:
        api.temporal.failing = TemporalUnavailable("down")
        refused = await api.post(BODY)
        api.temporal.failing = None
        assert (refused.status_code, (await api.post(BODY)).status_code) == (503, 200)


async def test_concurrent_requests_with_one_idempotency_key_count_as_one_live_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find, found = MemoryIdempotency.find, asyncio.Barrier(3)
    first_looks = iter(range(3))

    async def find_together(
        table: MemoryIdempotency, tenant: str, operation: str, key: str, since: datetime
    ) -> IdempotencyClaim | None:
        held = await find(table, tenant, operation, key, since)
        if next(first_looks, None) is not None:
            await found.wait()  # no request sees the claim of another request
        return held

    monkeypatch.setattr(MemoryIdempotency, "find", find_together)
    async with open_api(max_live_batches=3) as api:
        headers = {"Idempotency-Key": "k"}
        posts = (api.http.post("/v1/batches", json=BODY, headers=headers) for _ in range(3))
        answers = await asyncio.gather(*posts)
        assert {answer.status_code for answer in answers} == {200}
        assert len(api.temporal.orders) == 1
        assert [(await api.post(BODY)).status_code for _ in range(3)] == [200, 200, 429]


async def test_stored_bytes_may_reach_their_limit_but_not_exceed_it() -> None:
    async with open_api() as api:
        await put(api, stored_bytes=2 * len(LINE))
        await api.upload()
        await api.upload()
        answer = await api.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
        assert answer.status_code == 429
