"""/queue: single jobs, whose end is delivered to a callback URL."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from batchwright.contracts.api_objects.webhook_events import CALL_EVENTS
from batchwright.contracts.terms import Endpoint
from batchwright.rules.webhooks.signatures import check_secret
from tests.fakes.api import ApiFixture, error_of, open_api
from tests.fakes.calls import answer

SUBMIT = "/queue/submit"
URL = "http://127.0.0.1:9/done"
JOB = {"model": "llama", "payload": {"messages": [{"role": "user", "content": "Hi"}]}}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"]) as api:
        yield api


async def submit(api: ApiFixture, **fields: object) -> httpx.Response:
    return await api.http.post(SUBMIT, json={**JOB, **fields})


async def test_a_job_is_queued_processed_and_completed(api: ApiFixture) -> None:
    submitted = (await submit(api)).json()
    id = submitted["job_id"]
    assert submitted == {
        "job_id": id,
        "model": "llama",
        "status": "queued",
        "result": None,
        "result_omitted": False,
        "error": None,
        "created_at": submitted["created_at"],
        "completed_at": None,
        "callback_secret": None,
    }
    [order] = api.temporal.orders.values()
    assert order.endpoint is Endpoint.CHAT_COMPLETIONS
    await api.database.batches.start("default", order.batch_id, total=1, models=[], at=order.created_at)
    assert (await api.http.get(f"/queue/{id}")).json()["status"] == "processing"
    await answer(api, id, {"choices": []})
    ended = (await api.http.get(f"/queue/{id}")).json()
    assert (ended["status"], ended["result"], ended["error"]) == ("completed", {"choices": []}, None)
    assert ended["completed_at"] >= ended["created_at"]


async def test_a_failed_job_has_an_error_and_no_result(api: ApiFixture) -> None:
    id = (await submit(api)).json()["job_id"]
    await answer(api, id, {"error": {"message": "no"}}, 400)
    ended = (await api.http.get(f"/queue/{id}")).json()
    assert (ended["status"], ended["result"]) == ("failed", None)
    assert ended["error"] == {"code": "invalid_prompt", "message": "no"}


async def test_the_payload_gets_the_model_and_the_endpoint_may_be_another(api: ApiFixture) -> None:
    id = (await submit(api, payload={"input": "a"}, endpoint="/v1/embeddings")).json()["job_id"]
    stored = await api.database.calls.get("default", id)
    assert stored is not None
    assert (stored.endpoint, stored.request) == (Endpoint.EMBEDDINGS, b'{"input":"a","model":"llama"}')


async def test_the_end_of_a_job_is_delivered_to_its_callback(api: ApiFixture) -> None:
    submitted = (await submit(api, callback_url=URL)).json()
    check_secret(submitted["callback_secret"])
    [endpoint] = api.database.rows.webhook_endpoints.values()
    assert (endpoint.url, endpoint.batch_id, endpoint.events) == (URL, submitted["job_id"], list(CALL_EVENTS))
    await answer(api, submitted["job_id"], {})
    [delivery] = await api.database.webhook_deliveries.unstarted(10)
    assert delivery.endpoint_id == endpoint.id
    # The endpoints that a tenant manages do not include it.
    assert (await api.http.get("/v1/x/webhooks")).json()["data"] == []


async def test_a_repeated_job_has_the_same_callback(api: ApiFixture) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {**JOB, "callback_url": URL}
    first, again = [(await api.http.post(SUBMIT, json=body, headers=headers)).json() for _ in range(2)]
    assert first == again
    assert len(api.database.rows.webhook_endpoints) == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest",
        "http://[::1]/",
        "",
        "no url",
        3,
    ],
)
async def test_a_callback_obeys_the_rules_of_webhooks(api: ApiFixture, url: object) -> None:
    response = await submit(api, callback_url=url)
    assert (response.status_code, error_of(response).param) == (400, "callback_url")
    assert api.database.rows.calls == {}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"payload": None}, "payload"),
        ({"payload": "a"}, "payload"),
        ({"payload": {"model": "other", "messages": []}}, "payload.model"),
        ({"payload": {"messages": [], "stream": True}}, "payload.stream"),
        ({"payload": {"messages": [], "stream": "x"}}, "payload.stream"),
        ({"payload": {}}, None),
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"more": 1}, "more"),
    ],
)
async def test_a_job_that_is_not_valid_is_refused(
    api: ApiFixture, change: dict[str, object], param: str | None
) -> None:
    response = await submit(api, **change)
    assert (response.status_code, error_of(response).param) == (400, param)
    assert api.database.rows.calls == {}


async def test_the_required_fields_are_named(api: ApiFixture) -> None:
    for name in JOB:
        body = {key: value for key, value in JOB.items() if key != name}
        response = await api.http.post(SUBMIT, json=body)
        assert (response.status_code, error_of(response).param) == (400, name)


async def test_an_unknown_job_is_not_found(api: ApiFixture) -> None:
    for id in ("x", "resp_" + 32 * "0", "job_" + 32 * "0"):
        assert (await api.http.get(f"/queue/{id}")).status_code == 404
