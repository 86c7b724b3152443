"""Every route: it shows nothing of other tenants, and only keys with its scope may call it.

A test compares the table in this file with the routes of the application. A route without an entry fails it.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from batchwright.api.audit_log.recorder import TenantAction, action_of
from batchwright.contracts.api_objects.anthropic import MessageErrorObject, RelaxedMessageBatchObject
from batchwright.contracts.api_objects.calls import NewJobObject
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.api_objects.webhooks import DeliveryObject, WebhookObject
from batchwright.rules.ids import (
    message_batch_id,
    new_batch_id,
    new_call_id,
    new_delivery_id,
    new_file_id,
    new_part_id,
    new_schedule_id,
    new_upload_id,
    new_webhook_id,
)
from batchwright.rules.tenants.api_keys import ApiKey, Scope, is_granted
from tests.fakes.api import ApiFixture, error_of, open_api, read
from tests.fakes.api_keys import create_key

READ, WRITE, OPEN = Scope.READ, Scope.WRITE, None
VIEWER, OPERATOR, ADMIN = Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN
TOKEN = "token"  # the token in the path authorizes the call
_ID = re.compile(r"(resp_|job_|req_|msgbatch_|batch_|file-|upload_|part_|webhook_|wh_|schedule_)[0-9a-f]{32}")
_TIME = re.compile(r"\b[0-9]{10}\b")
_Value = str | list[str] | dict[str, str]  # of a field of a body


@dataclass(frozen=True)
class Ids:
    """Ids of objects that may belong to another tenant. Those in fields `own_...` belong to the caller."""

    file: str
    image: str  # a file that cannot be a batch's input
    batch: str
    upload: str
    part: str
    webhook: str
    delivery: str
    message_batch: str
    schedule: str
    response: str
    job: str
    own_upload: str = ""
    own_webhook: str = ""


def unknown() -> Ids:
    ids = (new_file_id(), new_file_id(), new_batch_id(), new_upload_id(), new_part_id())
    calls = new_call_id("resp_"), new_call_id("job_")
    ids += (new_webhook_id(), new_delivery_id(), message_batch_id(new_batch_id()), new_schedule_id())
    return Ids(*ids, *calls)


class Call:
    """A request with ids: `{file}` in its path, query or body is replaced by the field `file` of `Ids`."""

    def __init__(
        self,
        path: str,
        body: Mapping[str, _Value] | None = None,
        *,
        form: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._body, self._form = path, body, form
        self._headers = headers or {}

    async def send(self, api: ApiFixture, method: str, ids: Ids, key: ApiKey) -> httpx.Response:
        headers = {**self._headers, "Authorization": f"Bearer {key.text}"}
        path = self._path.format_map(vars(ids))
        if self._form:
            return await api.http.request(method, path, headers=headers, files={"data": b"bytes"})
        body = (
            None if self._body is None else {name: _filled(value, ids) for name, value in self._body.items()}
        )
        return await api.http.request(method, path, headers=headers, json=body)


def _filled(value: _Value, ids: Ids) -> _Value:
    if isinstance(value, str):
        return value.format_map(vars(ids))
    if isinstance(value, dict):
        return {name: item.format_map(vars(ids)) for name, item in value.items()}
    return [item.format_map(vars(ids)) for item in value]


def creation(file: str) -> Call:
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return Call("/v1/batches", body)


def scheduled(file: str) -> Call:
    batch = {"input_file_id": file, "endpoint": "/v1/chat/completions"}
    return Call("/v1/x/schedules", {"cron": "0 2 * * *", "batch": batch})


UPLOAD, BATCH, FILE = "/v1/uploads/{upload}", "/v1/batches/{batch}", "/v1/files/{file}"
WEBHOOK = "/v1/x/webhooks/{webhook}"
SCHEDULES = "/v1/x/schedules"
SCHEDULE = SCHEDULES + "/{schedule}"
DELIVERY = WEBHOOK + "/deliveries/{delivery}"
MESSAGES, VERSION = "/v1/messages/batches", {"anthropic-version": "2023-06-01"}
MESSAGE_BATCH = MESSAGES + "/{message_batch}"
RESPONSE = "/v1/responses/{response}"
# The scope that a route needs, and calls of it with ids of objects that may belong to another tenant.
TABLE: dict[str, tuple[Scope | str | None, list[Call]]] = {
    "GET /v1/files": (READ, [Call("/v1/files?after={file}")]),
    "POST /v1/files": (WRITE, []),
    "GET /v1/files/{file_id}": (READ, [Call(FILE)]),
    "DELETE /v1/files/{file_id}": (WRITE, [Call(FILE), Call("/v1/files/{image}")]),
    "GET /v1/files/{file_id}/content": (READ, [Call(FILE + "/content")]),
    "POST /v1/uploads": (WRITE, []),
    "POST /v1/uploads/{upload_id}/parts": (WRITE, [Call(UPLOAD + "/parts", form=True)]),
    "POST /v1/uploads/{upload_id}/complete": (
        WRITE,
        [
            Call(UPLOAD + "/complete", {"part_ids": ["{part}"]}),
            Call("/v1/uploads/{own_upload}/complete", {"part_ids": ["{part}"]}),
        ],
    ),
    "POST /v1/uploads/{upload_id}/cancel": (WRITE, [Call(UPLOAD + "/cancel")]),
    "POST /v1/batches": (WRITE, [creation("{file}"), creation("{image}")]),
    "GET /v1/batches": (READ, [Call("/v1/batches?after={batch}")]),
    "GET /v1/batches/{batch_id}": (READ, [Call(BATCH)]),
    "DELETE /v1/batches/{batch_id}": (WRITE, [Call(BATCH)]),
    "POST /v1/batches/{batch_id}/cancel": (WRITE, [Call(BATCH + "/cancel")]),
    "POST /v1/batches/{batch_id}/x/pause": (WRITE, [Call(BATCH + "/x/pause")]),
    "POST /v1/batches/{batch_id}/x/resume": (WRITE, [Call(BATCH + "/x/resume")]),
    "POST /v1/batches/{batch_id}/x/retry": (WRITE, [Call(BATCH + "/x/retry")]),
    "POST /v1/batches/{batch_id}/x/max_cost": (WRITE, [Call(BATCH + "/x/max_cost", {"max_cost": "5"})]),
    "POST /v1/batches/x/estimate": (
        WRITE,
        [Call("/v1/batches/x/estimate", {"input_file_id": "{file}", "endpoint": "/v1/chat/completions"})],
    ),
    "GET /v1/batches/{batch_id}/x/results": (READ, [Call(BATCH + "/x/results")]),
    "GET /v1/batches/{batch_id}/x/state": (READ, [Call(BATCH + "/x/state")]),
    "GET /v1/batches/{batch_id}/x/throughput": (READ, [Call(BATCH + "/x/throughput")]),
    # The owner's stream would not end. The batch is looked up before the header is checked.
    "GET /v1/batches/{batch_id}/x/events": (
        READ,
        [Call(BATCH + "/x/events", headers={"Last-Event-ID": "?"})],
    ),
    "POST /v1/messages/batches": (WRITE, []),
    "GET /v1/messages/batches": (
        READ,
        [Call(f"{MESSAGES}?{name}={{message_batch}}", headers=VERSION) for name in ("after_id", "before_id")],
    ),
    "GET /v1/messages/batches/{message_batch_id}": (READ, [Call(MESSAGE_BATCH, headers=VERSION)]),
    "DELETE /v1/messages/batches/{message_batch_id}": (WRITE, [Call(MESSAGE_BATCH, headers=VERSION)]),
    "POST /v1/messages/batches/{message_batch_id}/cancel": (
        WRITE,
        [Call(MESSAGE_BATCH + "/cancel", headers=VERSION)],
    ),
    "GET /v1/messages/batches/{message_batch_id}/results": (
        READ,
        [Call(MESSAGE_BATCH + "/results", headers=VERSION)],
    ),
    "POST /v1/responses": (WRITE, []),
    "GET /v1/responses/{response_id}": (READ, [Call(RESPONSE)]),
    "POST /v1/responses/{response_id}/cancel": (WRITE, [Call(RESPONSE + "/cancel")]),
    "POST /v1/chat/completions": (WRITE, []),
    "POST /queue/submit": (WRITE, []),
    "GET /queue/{job_id}": (READ, [Call("/queue/{job}")]),
    "GET /v1/models": (READ, []),
    "GET /v1/models/{model}": (READ, []),
    "GET /v1/x/limits": (READ, []),
    "GET /v1/x/webhooks": (READ, [Call("/v1/x/webhooks?after={webhook}")]),
    "POST /v1/x/webhooks": (WRITE, []),
    "GET /v1/x/webhooks/{webhook_id}": (READ, [Call(WEBHOOK)]),
    "PATCH /v1/x/webhooks/{webhook_id}": (WRITE, [Call(WEBHOOK, {"description": "changed"})]),
    "DELETE /v1/x/webhooks/{webhook_id}": (WRITE, [Call(WEBHOOK)]),
    "POST /v1/x/webhooks/{webhook_id}/rotate": (WRITE, [Call(WEBHOOK + "/rotate")]),
    "POST /v1/x/webhooks/{webhook_id}/test": (WRITE, [Call(WEBHOOK + "/test")]),
    "GET /v1/x/webhooks/{webhook_id}/deliveries": (
        READ,
        [Call(WEBHOOK + "/deliveries"), Call("/v1/x/webhooks/{own_webhook}/deliveries?after={delivery}")],
    ),
    "GET /v1/x/webhooks/{webhook_id}/deliveries/{delivery_id}": (
        READ,
        [Call(DELIVERY), Call("/v1/x/webhooks/{own_webhook}/deliveries/{delivery}")],
    ),
    "POST /v1/x/webhooks/{webhook_id}/deliveries/{delivery_id}/replay": (
        WRITE,
        [Call(DELIVERY + "/replay"), Call("/v1/x/webhooks/{own_webhook}/deliveries/{delivery}/replay")],
    ),
    "GET /v1/x/schedules": (READ, [Call(SCHEDULES + "?after={schedule}")]),
    "POST /v1/x/schedules": (WRITE, [scheduled("{file}"), scheduled("{image}")]),
    "GET /v1/x/schedules/{schedule_id}": (READ, [Call(SCHEDULE)]),
    "PATCH /v1/x/schedules/{schedule_id}": (WRITE, [Call(SCHEDULE, {"cron": "0 3 * * *"})]),
    "DELETE /v1/x/schedules/{schedule_id}": (WRITE, [Call(SCHEDULE)]),
    "POST /v1/x/schedules/{schedule_id}/pause": (WRITE, [Call(SCHEDULE + "/pause")]),
    "POST /v1/x/schedules/{schedule_id}/resume": (WRITE, [Call(SCHEDULE + "/resume")]),
    "POST /v1/x/schedules/{schedule_id}/trigger": (WRITE, [Call(SCHEDULE + "/trigger")]),
    "GET /admin/rates": (VIEWER, []),
    "PUT /admin/rates": (OPERATOR, []),
    "DELETE /admin/rates": (OPERATOR, []),
    "GET /admin/workers": (VIEWER, []),
    "GET /admin/keys": (VIEWER, []),
    "POST /admin/keys": (ADMIN, []),
    "POST /admin/keys/{key_id}/revoke": (ADMIN, []),
    "GET /admin/holds": (VIEWER, []),
    "PUT /admin/holds": (OPERATOR, []),
    "DELETE /admin/holds": (OPERATOR, []),
    "GET /admin/quotas": (VIEWER, []),
    "PUT /admin/quotas": (ADMIN, []),
    "DELETE /admin/quotas": (ADMIN, []),
    "GET /admin/quotas/{tenant}": (VIEWER, []),
    "GET /admin/budget-groups": (VIEWER, []),
    "GET /admin/budget-groups/{kind}/{name}": (VIEWER, []),
    "PUT /admin/budget-groups/{kind}/{name}": (ADMIN, []),
    "DELETE /admin/budget-groups/{kind}/{name}": (ADMIN, []),
    "GET /admin/models": (VIEWER, []),
    "GET /admin/models/{model}": (VIEWER, []),
    "PUT /admin/models/{model}": (ADMIN, []),
    "PATCH /admin/models/{model}": (ADMIN, []),
    "DELETE /admin/models/{model}": (ADMIN, []),
    "GET /admin/model-configs/{model}": (VIEWER, []),
    "PUT /admin/model-configs/{model}": (ADMIN, []),
    "DELETE /admin/model-configs/{model}": (ADMIN, []),
    "GET /admin/batches": (VIEWER, []),
    "GET /admin/batches/counts": (VIEWER, []),
    "GET /admin/batches/{batch_id}": (VIEWER, []),
    "POST /admin/batches/{batch_id}/cancel": (OPERATOR, []),
    "POST /admin/batches/{batch_id}/pause": (OPERATOR, []),
    "POST /admin/batches/{batch_id}/resume": (OPERATOR, []),
    "POST /admin/batches/{batch_id}/priority": (OPERATOR, []),
    "GET /admin/batches/{batch_id}/slices": (VIEWER, []),
    "POST /admin/batches/{batch_id}/abandon": (OPERATOR, []),
    "GET /admin/dlq": (VIEWER, []),
    "POST /admin/dlq/retry-all": (OPERATOR, []),
    "POST /admin/dlq/{letter_id}/retry": (OPERATOR, []),
    "DELETE /admin/dlq/{letter_id}": (OPERATOR, []),
    "GET /admin/audit-log": (VIEWER, []),
    "GET /admin/audit-log/export": (VIEWER, []),
    "GET /v1/stats": (VIEWER, []),
    "POST /tasks/callback/{token}": (TOKEN, []),
    "GET /healthz": (OPEN, []),
    "GET /readyz": (OPEN, []),
    "GET /metrics": (OPEN, []),
    "GET /openapi.json": (OPEN, []),
}


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
