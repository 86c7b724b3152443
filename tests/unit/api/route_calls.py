"""Calls of every route of the API, with the scope that the route needs."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

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
from batchwright.rules.tenants.api_keys import ApiKey
from batchwright.rules.tenants.scopes import Scope
from tests.fakes.api import ApiFixture

READ, WRITE, OPEN = Scope.READ, Scope.WRITE, None
VIEWER, OPERATOR, ADMIN = Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN
TOKEN = "token"  # the token in the path authorizes the call
_Value = str | list[str] | dict[str, str]  # of a field of a body


@dataclass(frozen=True)
class Ids:
    """The ids of objects that may belong to another tenant. Those in fields `own_...` belong to
    the caller.
    """

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
