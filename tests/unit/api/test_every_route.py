"""Every route: it shows nothing of other tenants, and only keys with its scope may call it.

A test compares the table in `route_calls.py` with the routes of the application. A route without an entry
fails it.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from batchwright.api.audit_log.recorder import TenantAction, action_of
from batchwright.contracts.api_objects.anthropic import MessageErrorObject, RelaxedMessageBatchObject
from batchwright.contracts.api_objects.calls import NewJobObject
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.api_objects.webhooks import DeliveryObject, WebhookObject
from batchwright.rules.tenants.api_keys import ApiKey
from batchwright.rules.tenants.scopes import Scope, is_granted
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key
from tests.unit.api.route_calls import MESSAGES, OPEN, SCHEDULES, TABLE, TOKEN, VERSION, Ids, unknown

_ID = re.compile(r"(resp_|job_|req_|msgbatch_|batch_|file-|upload_|part_|webhook_|wh_|schedule_)[0-9a-f]{32}")
_TIME = re.compile(r"\b[0-9]{10}\b")


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    """Yield all routes of an application, even those that OpenAPI does not show."""
    for route in routes:
        if isinstance(route, Route):
            yield route
        else:  # an included router, which FastAPI does not export as a type
            yield from routes_of(getattr(route, "original_router").routes)  # noqa: B009


def names_of(route: Route) -> list[str]:
    """Return a route's methods with its path, such as `GET /v1/files`."""
    methods = (route.methods or set()) - {"HEAD"}
    return [f"{method} {route.path.replace(':path', '')}" for method in methods]


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    networks = ["127.0.0.0/8"]
    async with open_api(auth="api_key", auth_failures_per_minute=0, webhook_allowed_networks=networks) as api:
        yield api


async def belongings(api: ApiFixture, key: ApiKey) -> Ids:
    """Create objects of a tenant and return their ids.

    The objects are files, a live batch, an upload with a part, a webhook with a delivery, and a
    schedule.
    """
    client = api.openai.with_options(api_key=key.text)
    file = await client.files.create(file=("in.jsonl", b'{"custom_id": "a", "body": {}}\n'), purpose="batch")
    image = await client.files.create(file=("in.png", b"png"), purpose="vision")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    upload = await client.uploads.create(bytes=5, filename="a", mime_type="text/plain", purpose="vision")
    part = await client.uploads.parts.create(upload.id, data=b"bytes")
    headers = {"Authorization": f"Bearer {key.text}"}
    webhook = await api.http.post("/v1/x/webhooks", json={"url": "http://127.0.0.1:9/"}, headers=headers)
    id = read(webhook, WebhookObject).id
    delivery = read(await api.http.post(f"/v1/x/webhooks/{id}/test", headers=headers), DeliveryObject)
    body = '{"requests": [{"custom_id": "a", "params": {}}]}'
    messages = await api.http.post(MESSAGES, content=body, headers=headers | VERSION)
    message_batch = read(messages, RelaxedMessageBatchObject).id
    response = await client.responses.create(model="llama", input="a", background=True)
    job: dict[str, object] = {"model": "llama", "payload": {"messages": []}}
    submitted = read(await api.http.post("/queue/submit", json=job, headers=headers), NewJobObject)
    own = {"own_upload": upload.id, "own_webhook": id}
    template = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    scheduled = {"cron": "0 2 * * *", "batch": template}
    schedule = read(await api.http.post(SCHEDULES, json=scheduled, headers=headers), ScheduleObject).id
    ids = (file.id, image.id, batch.id, upload.id, part.id, id, delivery.id, message_batch, schedule)
    return Ids(*ids, response.id, submitted.job_id, **own)


def held_by(api: ApiFixture, tenant: str) -> str:
    """Return all objects of a tenant, and the signals that its batches received, as text."""
    rows = api.database.rows
    tables = (rows.files, rows.batches, rows.uploads, rows.parts)
    tables += (rows.webhook_endpoints, rows.webhook_deliveries, rows.schedules, rows.calls)
    mine = [value for table in tables for key, value in table.items() if key[0] == tenant]
    objects = sorted(key for key in api.storage.objects)
    schedules = [each for each in api.schedules.stored.values() if each.spec.tenant == tenant]
    return repr((mine, objects, api.temporal.signals, schedules))


def comparable(answer: httpx.Response) -> tuple[int, str, dict[str, str]]:
    """Return a response without the parts that differ between any two responses."""
    ids = ("x-request-id", "request-id")
    headers = {name: value for name, value in answer.headers.items() if name not in ids}
    return answer.status_code, _TIME.sub("TIME", _ID.sub("ID", answer.text)), headers


# Routes for tenants that destroy nothing: they create or continue something, or can be undone.
HARMLESS = {
    "POST /v1/files",
    "POST /v1/uploads",
    "POST /v1/uploads/{upload_id}/parts",
    "POST /v1/uploads/{upload_id}/complete",
    "POST /v1/batches",
    "POST /v1/batches/x/estimate",
    "POST /v1/batches/{batch_id}/x/pause",
    "POST /v1/batches/{batch_id}/x/resume",
    "POST /v1/batches/{batch_id}/x/retry",
    "POST /v1/messages/batches",
    "POST /v1/responses",
    "POST /v1/chat/completions",
    "POST /queue/submit",
    "POST /v1/x/webhooks",
    "POST /v1/x/webhooks/{webhook_id}/test",
    "POST /v1/x/webhooks/{webhook_id}/deliveries/{delivery_id}/replay",
    "POST /tasks/callback/{token}",  # from a backend
}


async def test_every_route_that_changes_or_destroys_something_declares_its_action(api: ApiFixture) -> None:
    undeclared: set[str] = set()
    for route in routes_of(api.app.routes):
        if not isinstance(route, APIRoute):
            continue
        action = action_of(route)
        for method in (route.methods or set()) - {"GET", "HEAD"}:
            name = f"{method} {route.path}"
            is_operators = route.path.startswith("/admin/")
            if action is None:
                undeclared.add(name)
            assert action is None or isinstance(action, TenantAction) is not is_operators, name
    assert undeclared == HARMLESS


def code_of(answer: httpx.Response) -> str | None:
    """Return the code of an error. Errors of Anthropic's routes have none, so their type decides."""
    if "request-id" not in answer.headers:
        return error_of(answer).code
    error = MessageErrorObject.model_validate_json(answer.content).error
    if error.type == "permission_error" and "lacks the scope" in error.message:
        return "missing_scope"
    return "invalid_api_key" if error.type == "authentication_error" else None


async def test_the_table_of_this_test_has_every_route(api: ApiFixture) -> None:
    names = [name for route in routes_of(api.app.routes) for name in names_of(route)]
    assert sorted(names) == sorted(TABLE)


async def test_the_description_has_every_route_so_that_random_requests_reach_it(api: ApiFixture) -> None:
    """The fuzzer reads its routes from the description. See `tests/conformance/fuzzing.py`."""
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    described = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    names = {name for route in routes_of(api.app.routes) for name in names_of(route)}
    assert names - described == {"GET /openapi.json"}


@pytest.mark.parametrize("route", [route for route, (_, calls) in TABLE.items() if calls])
async def test_objects_of_another_tenant_look_like_missing_ones(route: str, api: ApiFixture) -> None:
    blue, red = await create_key(api.database, "blue"), await create_key(api.database, "red")
    theirs, own = await belongings(api, blue), await belongings(api, red)
    method, (_, calls) = route.split(" ")[0], TABLE[route]
    mine = {"own_upload": own.upload, "own_webhook": own.webhook}
    before = held_by(api, "blue")
    answers: list[tuple[int, str, dict[str, str]]] = []
    for call in calls:
        foreign = await call.send(api, method, replace(theirs, **mine), red)
        nothing = await call.send(api, method, replace(unknown(), **mine), red)
        answers.append(comparable(foreign))
        assert comparable(foreign) == comparable(nothing)
    assert held_by(api, "blue") == before
    # The owner gets another response, so these calls can detect a leak.
    assert [comparable(await call.send(api, method, theirs, blue)) for call in calls] != answers


@pytest.mark.parametrize("route", TABLE)
async def test_a_route_accepts_only_the_scope_it_needs(route: str, api: ApiFixture) -> None:
    wanted, _ = TABLE[route]
    method, path = route.split(" ")
    names: list[str] = [
        "file_id",
        "upload_id",
        "batch_id",
        "message_batch_id",
        "model",
        "tenant",
        "letter_id",
        "webhook_id",
        "delivery_id",
        "response_id",
        "job_id",
        "token",
        "name",
        "kind",
        "schedule_id",
        "key_id",
    ]
    path = path.format_map(dict.fromkeys(names, "x"))
    without = await api.http.request(method, path)
    if wanted is OPEN:
        assert without.status_code == 200
        return
    if wanted == TOKEN:
        assert (without.status_code, error_of(without).code) == (401, "invalid_callback_token")
        return
    assert (without.status_code, code_of(without)) == (401, "invalid_api_key")
    for scope in Scope:
        key = await create_key(api.database, "blue", scopes=[scope])
        answer = await api.http.request(method, path, headers={"Authorization": f"Bearer {key.text}"})
        if is_granted(Scope(wanted), [scope]):
            assert answer.status_code not in (401, 403)
        else:
            assert (answer.status_code, code_of(answer)) == (403, "missing_scope")
            assert f"'{wanted}'" in answer.text
