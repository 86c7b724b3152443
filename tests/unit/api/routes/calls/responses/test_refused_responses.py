"""Requests to /v1/responses that are refused because of their body, model or id, or because of limits."""

import asyncio
import json
from datetime import datetime

import pytest

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.services.calls import acceptance as calls
from batchwright.contracts.calls import ANSWER_LIFETIME, Call
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.ids import new_call_id
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.calls import answer
from tests.unit.api.routes.calls.responses.response_calls import ANSWER, ASK, NOW, PATH, created


async def test_without_the_database_no_call_is_accepted(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("gone")
    assert (await api.http.post(PATH, json=ASK)).status_code == 503
    assert api.temporal.orders == {}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"background": False}, "background"),
        ({"background": None}, "background"),
        ({"background": "yes"}, "background"),
        ({"service_tier": "auto", "background": False}, "background"),
        ({"stream": True}, "stream"),
        ({"store": False}, "store"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"model": "a\n"}, "model"),
        ({"MODEL": "llama"}, None),
    ],
)
async def test_a_call_that_is_not_valid_is_refused(
    api: ApiFixture, change: dict[str, object], param: str | None
) -> None:
    response = await api.http.post(PATH, json={**ASK, **change})
    assert response.status_code == 400
    assert error_of(response).param == param
    assert api.database.rows.calls == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b'{"model": "\xff"}', b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(api: ApiFixture, body: bytes) -> None:
    assert (await api.http.post(PATH, content=body)).status_code == 400


async def test_a_body_over_the_limit_of_a_line_is_refused() -> None:
    async with open_api(max_line_bytes=1000) as api:
        body = {**ASK, "input": "a" * 1000}
        assert (await api.http.post(PATH, json=body)).status_code == 413
        fitting = 1000 - len(json.dumps({**ASK, "input": ""})) - 150
        assert (await api.http.post(PATH, json={**ASK, "input": "a" * fitting})).status_code == 200


async def test_a_model_that_nobody_serves_or_that_is_not_allowed_looks_the_same(api: ApiFixture) -> None:
    unknown = await api.http.post(PATH, json={**ASK, "model": "nothing"})
    assert (unknown.status_code, error_of(unknown).code) == (404, "model_not_found")
    await api.database.quotas.change("default", {"models": ["org/qwen:7b"]}, NOW)
    refused = await api.http.post(PATH, json=ASK)
    assert (refused.status_code, error_of(refused).code) == (404, "model_not_found")


async def test_a_tenant_with_too_many_calls_has_no_room(api: ApiFixture) -> None:
    await api.database.quotas.change("default", {"enqueued_lines": 2}, NOW)
    first = await created(api)
    await created(api)
    refused = await api.http.post(PATH, json=ASK)
    assert (refused.status_code, error_of(refused).code) == (429, "resource_unavailable")
    assert "Retry-After" in refused.headers
    await answer(api, first, ANSWER)
    await created(api)


async def test_the_calls_of_a_tenant_are_in_a_limited_number_of_batches(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_ROLLING_BATCHES", 1)
    await created(api)
    await created(api)  # in the same batch
    other = {**ASK, "model": "org/qwen:7b"}
    refused = await api.http.post(PATH, json=other)
    assert (refused.status_code, error_of(refused).code) == (429, "resource_unavailable")
    assert len(api.temporal.orders) == 1
    [order] = api.temporal.orders.values()
    await api.database.batch_ends.end_without_files(
        "default", order.batch_id, BatchStatus.FAILED, [], order.created_at
    )
    await created(api, model="org/qwen:7b")


async def test_a_tenant_whose_storage_is_full_has_no_room(api: ApiFixture) -> None:
    await created(api)
    size = await api.database.quotas.stored("default")
    await api.database.quotas.change("default", {"stored_bytes": size}, NOW)
    refused = await api.http.post(PATH, json=ASK)
    assert (refused.status_code, error_of(refused).code) == (429, "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    await api.database.quotas.change("default", {"stored_bytes": 2 * size}, NOW)
    await created(api)


@pytest.mark.parametrize("quota", [{"enqueued_lines": 2}, {"stored_bytes": 30}])
async def test_calls_count_for_the_limits_before_the_usage_is_read_again(
    api: ApiFixture, quota: dict[str, object]
) -> None:
    await api.database.quotas.change("default", quota, NOW)
    parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
    service = calls.Calls(ApiDependencies(*parts, recent_seconds=3600))
    request = calls.CallRequest("resp_", Endpoint.RESPONSES, "llama", b"ten bytes.")
    submits = [service.submit(request, "default", Caller()) for _ in range(5)]
    results = await asyncio.gather(*submits, return_exceptions=True)
    refused = [result for result in results if isinstance(result, ApiError)]
    assert len(api.database.rows.calls) == 5 - len(refused) == (2 if "enqueued_lines" in quota else 3)
    assert {error.status for error in refused} == {429}


async def test_a_call_that_another_process_has_accepted_meanwhile_needs_no_room(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.database.quotas.change("default", {"enqueued_lines": 1}, NOW)
    parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
    service, other_process = (calls.Calls(ApiDependencies(*parts)) for _ in range(2))
    request = calls.CallRequest("resp_", Endpoint.RESPONSES, "llama", b"{}")
    key, find = calls.SentKey("once", "digest"), api.database.idempotency.find
    accepted: list[Call] = []

    async def find_nothing(tenant: str, operation: str, key_text: str, since: datetime) -> None:
        monkeypatch.setattr(api.database.idempotency, "find", find)
        accepted.append(await other_process.submit(request, "default", Caller(), key))

    monkeypatch.setattr(api.database.idempotency, "find", find_nothing)
    assert (await service.submit(request, "default", Caller(), key)).id == accepted[0].id
    assert len(api.database.rows.calls) == 1


@pytest.mark.parametrize("id", ["resp_x", "job_" + 32 * "0", "resp_" + 32 * "0"])
async def test_an_unknown_call_is_not_found(api: ApiFixture, id: str) -> None:
    for response in (await api.http.get(f"{PATH}/{id}"), await api.http.post(f"{PATH}/{id}/cancel")):
        assert response.status_code == 404


async def test_a_call_that_ended_a_day_ago_is_not_found(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await created(api)
    await answer(api, id, ANSWER)
    ended = api.database.rows.clock()
    monkeypatch.setattr(api.database.rows, "clock", lambda: ended + ANSWER_LIFETIME)
    for response in (await api.http.get(f"{PATH}/{id}"), await api.http.post(f"{PATH}/{id}/cancel")):
        assert response.status_code == 404
        assert "Its answer is kept for a day after its end" in error_of(response).message


async def test_a_call_of_another_route_is_not_found(api: ApiFixture) -> None:
    assert (await api.http.get(f"{PATH}/{new_call_id('job_')}")).status_code == 404
