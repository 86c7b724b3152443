"""Calls with the service tier `flex`: the API keeps the client's connection open until the call
is answered.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from openai import RateLimitError

from batchwright.api.auth import key_cache
from batchwright.api.middleware import authentication
from batchwright.api.services.calls import held_calls
from batchwright.api.services.calls.acceptance import CallWindow
from batchwright.contracts.calls import CallStatus
from batchwright.contracts.errors import LineCode
from batchwright.database.errors import DatabaseUnavailable
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api
from tests.fakes.api_keys import create_key
from tests.fakes.calls import answer, fail

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASK: dict[str, object] = {"model": "llama", "messages": [], "service_tier": "flex"}
ASK_RESPONSE: dict[str, object] = {"model": "llama", "input": "a", "service_tier": "flex"}
ANSWER: dict[str, object] = {
    "id": "chatcmpl-backend",
    "choices": [],
    "model": "llama",
    "object": "chat.completion",
    "created": 1,
}
KEY = {"Idempotency-Key": "once"}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def sent(
    api: ApiFixture, path: str = CHAT, body: object = ASK, headers: dict[str, str] | None = None
) -> asyncio.Task[httpx.Response]:
    """Send a `flex` request, and return when its call is stored. The API keeps its connection open."""
    before = len(api.database.rows.calls)
    request = asyncio.create_task(api.http.post(path, json=body, headers=headers))
    while len(api.database.rows.calls) == before and not request.done():
        await asyncio.sleep(0)
    return request


def last_id(api: ApiFixture) -> str:
    return list(api.database.rows.calls)[-1][1]


async def test_a_chat_completion_is_what_the_backend_answered(api: ApiFixture) -> None:
    request = asyncio.create_task(
        api.openai.chat.completions.create(model="llama", messages=[], service_tier="flex")
    )
    while not api.database.rows.calls:
        await asyncio.sleep(0)
    stored = await api.database.calls.get("default", last_id(api))
    assert stored is not None
    assert stored.request == b'{"model":"llama","messages":[]}'
    await answer(api, last_id(api), ANSWER)
    assert (await request).id == "chatcmpl-backend"
    [order] = api.temporal.orders.values()
    assert order.completion_window == "15m"


async def test_a_response_is_retrieved_later_as_well(api: ApiFixture) -> None:
    request = await sent(api, RESPONSES, ASK_RESPONSE)
    id = last_id(api)
    await answer(api, id, {"object": "response", "output": [], "model": "llama"})
    got = (await request).json()
    assert (got["id"], got["status"], got["background"]) == (id, "completed", False)
    assert (await api.http.get(f"{RESPONSES}/{id}")).json() == got


async def test_an_error_of_the_backend_is_passed_on(api: ApiFixture) -> None:
    for path, body in {CHAT: ASK, RESPONSES: ASK_RESPONSE}.items():
        request = await sent(api, path, body)
        await answer(api, last_id(api), {"error": {"message": "no"}}, 418)
        assert ((await request).status_code, (await request).json()) == (418, {"error": {"message": "no"}})


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        (LineCode.BATCH_EXPIRED, 429, "resource_unavailable"),
        (LineCode.POLICY_REJECTED, 403, "policy_rejected"),
        (LineCode.MODEL_NOT_FOUND, 404, "model_not_found"),
        (LineCode.BATCH_FAILED, 500, "batch_failed"),
        (LineCode.BATCH_CANCELLED, 409, "cancelled"),
    ],
)
async def test_a_call_without_an_answer_is_an_error(
    api: ApiFixture, code: LineCode, status: int, shown: str
) -> None:
    request = await sent(api)
    await fail(api, last_id(api), code)
    response = await request
    assert (response.status_code, error_of(response).code) == (status, shown)


async def test_a_broken_connection_finds_its_call_again_by_its_key(api: ApiFixture) -> None:
    broken = await sent(api, headers=KEY)
    broken.cancel()
    await asyncio.gather(broken, return_exceptions=True)
    again = asyncio.create_task(api.http.post(CHAT, json=ASK, headers=KEY))
    await answer(api, last_id(api), ANSWER)
    assert (await again).json() == ANSWER
    assert (await api.http.post(CHAT, json=ASK, headers=KEY)).json() == ANSWER
    assert len(api.database.rows.calls) == 1


@pytest.mark.parametrize(("headers", "status"), [(None, "cancelled"), (KEY, "queued")])
async def test_a_call_without_an_answer_is_not_held_for_ever(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str] | None, status: str
) -> None:
    monkeypatch.setattr(held_calls, "HELD", CallWindow("15m", timedelta(0)))
    late = await api.http.post(CHAT, json=ASK, headers=headers)
    assert (late.status_code, error_of(late).code) == (429, "resource_unavailable")
    assert late.headers["x-should-retry"] == "false"
    call = await api.database.calls.get("default", last_id(api))
    assert call is not None
    assert call.status.value == status


async def test_the_wait_for_a_call_ends_when_it_no_longer_exists(api: ApiFixture) -> None:
    request = await sent(api)
    api.database.rows.calls.clear()
    assert (await request).status_code == 503


async def test_without_room_for_the_connection_the_client_gets_its_error(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_PER_TENANT", 1)
    request = await sent(api)
    with pytest.raises(RateLimitError) as caught:
        await api.openai.chat.completions.create(model="llama", messages=[], service_tier="flex")
    assert caught.value.code == "resource_unavailable"
    assert len(api.database.rows.calls) == 1
    await answer(api, last_id(api), ANSWER)
    assert (await request).status_code == 200
    next_one = await sent(api)  # there is room again
    await answer(api, last_id(api), ANSWER)
    assert (await next_one).status_code == 200


@pytest.mark.parametrize(("headers", "status"), [(None, "cancelled"), (KEY, "queued")])
async def test_a_stopping_process_sends_its_clients_away(headers: dict[str, str] | None, status: str) -> None:
    async with open_own_api() as api:
        request = await sent(api, headers=headers)
        api.stopping.set()
        response = await request
        assert response.status_code == 503
        assert "Retry-After" in response.headers
        call = await api.database.calls.get("default", last_id(api))
        assert call is not None
        assert call.status.value == status


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (RESPONSES, ASK_RESPONSE)])
async def test_the_wait_for_a_call_ends_when_its_key_is_revoked(
    monkeypatch: pytest.MonkeyPatch, path: str, body: object
) -> None:
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(key_cache, "CACHE_SECONDS", 0)
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "blue")
        request = await sent(api, path, body, {"Authorization": f"Bearer {key.text}"})
        await api.database.api_keys.revoke(key.prefix, datetime.now(UTC))
        assert (await request).status_code == 499
        call = await api.database.calls.get("blue", last_id(api))
        assert call is not None
        assert call.status is CallStatus.CANCELLED


async def test_the_bodies_of_held_calls_have_a_limit_for_a_tenant_and_for_all(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(api.http.build_request("POST", CHAT, json=ASK).content)
    monkeypatch.setattr(api.held_bytes, "limit_per_tenant", 2 * size - 1)
    monkeypatch.setattr(api.held_bytes, "limit", 3 * size - 1)
    request, other = await sent(api), {"X-Tenant": "other"}
    for path in (CHAT, RESPONSES, "/queue/submit"):
        refused = await api.http.post(path, json=ASK)
        assert (refused.status_code, error_of(refused).code) == (429, "resource_unavailable")
    of_other = await sent(api, headers=other)
    assert (await api.http.post(CHAT, json=ASK, headers={"X-Tenant": "third"})).status_code == 429
    for tenant, id in list(api.database.rows.calls):
        await answer(api, id, ANSWER, tenant=tenant)
    assert [(await each).status_code for each in (request, of_other)] == [200, 200]
    assert (await sent(api)).cancel()  # there is room again


@pytest.mark.parametrize(("headers", "status"), [({}, "cancelled"), (KEY, "queued")])
async def test_a_call_whose_client_is_gone_is_cancelled_if_nobody_can_fetch_it(
    api: ApiFixture, headers: dict[str, str], status: str
) -> None:
    body = json.dumps(ASK).encode()
    received = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    fields = {"content-type": "application/json", "host": "api", **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("api", 80),
    }

    async def receive() -> MutableMapping[str, Any]:
        return received.pop(0) if received else {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None: ...

    await api.app(scope, receive, send)
    call = await api.database.calls.get("default", last_id(api))
    assert call is not None
    assert call.status.value == status


async def test_an_outage_of_the_database_does_not_end_the_wait(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    request = await sent(api)
    api.database.rows.failing = DatabaseUnavailable("gone")
    while "held calls cannot be watched" not in caplog.text:
        await asyncio.sleep(0.01)
    api.database.rows.failing = None
    await answer(api, last_id(api), ANSWER)
    assert (await request).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"service_tier": None}, "service_tier"),
        ({"service_tier": "auto"}, "service_tier"),
        ({"service_tier": 1}, "service_tier"),
        ({"stream": True}, "stream"),
        ({"model": None}, "model"),
        ({"messages": None}, None),
    ],
)
async def test_a_completion_that_is_not_valid_is_refused(
    api: ApiFixture, change: dict[str, object], param: str | None
) -> None:
    response = await api.http.post(CHAT, json={**ASK, **change})
    assert (response.status_code, error_of(response).param) == (400, param)
