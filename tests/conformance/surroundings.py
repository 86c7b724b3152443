"""Checks of models, errors and webhooks with the official Python client."""

import time
from datetime import UTC, datetime

import pytest
from openai import NotFoundError

from batchwright.contracts.api_objects.webhook_events import END_EVENTS, batch_event
from batchwright.rules.webhooks.signatures import signed_headers
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.exact import check, exact
from tests.conformance.requests import NOWHERE
from tests.e2e.stack import MODELS

TABLE = Table()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@TABLE.row("Models", "the served models are listed and retrieved; another is 404 `model_not_found`")
async def models(api: Api) -> None:
    listed = [model async for model in api.client.models.list()]
    assert [model.id for model in listed] == sorted(MODELS)
    assert exact(await api.client.models.with_raw_response.retrieve(MODELS[0])) in listed
    with pytest.raises(NotFoundError) as unknown:
        await api.client.models.retrieve("org/other")
    assert unknown.value.code == "model_not_found"


@TABLE.row("Errors", "every error has `message`, `type`, `param` and `code`; wrong methods are 405")
async def shapes(api: Api) -> None:
    async with http_client(base_url=api.url.removesuffix("/v1")) as http:
        unknown, wrong = await http.get("/v1/x"), await http.put("/v1/files")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert unknown.json() == {
        "error": {
            "message": "Invalid URL (GET /v1/x)",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }
    assert set(wrong.json()["error"]) == {"message", "type", "param", "code"}
    assert wrong.headers["allow"] == "GET, HEAD, POST"


@TABLE.row("Errors", "every response has an `x-request-id`, the caller's own if it is harmless")
async def request_ids(api: Api) -> None:
    raw = api.client.files.with_raw_response
    assert (await raw.list()).http_response.headers["x-request-id"].startswith("req_")
    own = await raw.list(extra_headers={"x-request-id": "mine-1"})
    assert own.http_response.headers["x-request-id"] == "mine-1"
    with pytest.raises(NotFoundError) as unknown:
        await api.client.files.retrieve(NOWHERE)
    assert unknown.value.request_id is not None


@TABLE.row("Webhooks", "`webhooks.unwrap` accepts the events of all ends of a batch")
async def webhooks(api: Api) -> None:
    for type_ in END_EVENTS:
        body = batch_event("evt_1", "batch_1", type_, datetime.now(UTC)).body()
        headers = signed_headers([SECRET], "wh_1", int(time.time()), body)
        unwrapped = api.client.webhooks.unwrap(body.decode(), headers, secret=SECRET)
        check(type(unwrapped), unwrapped.to_dict())
        assert unwrapped.type == type_
