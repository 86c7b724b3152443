"""Targets of actions in the audit log: which object a request changes, and the state of that object.

The state contains no secrets, and no content of requests or results. As a second protection, `recorder.py`
redacts all text that looks like a secret.
"""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from fastapi import Request
from pydantic import JsonValue

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.schemas.json_body import read_json_object, read_optional_object
from batchwright.contracts.api_objects.audit_log import AuditTargetType
from batchwright.contracts.terms import GroupKind, HoldKind
from batchwright.database.records import BatchRow
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.rules.batch_states import visible_status
from batchwright.rules.ids import (
    batch_id_of,
    is_batch_id,
    is_call_id,
    is_file_id,
    is_schedule_id,
    is_upload_id,
    is_webhook_id,
    new_schedule_id,
)
from batchwright.rules.json_text import storable
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from batchwright.rules.tenants.api_keys import new_key_id

_MAX_ID_CHARACTERS = 256
State = dict[str, JsonValue]


class TargetKind(Protocol):
    """A kind of object that the audit log can name as the target of an action, such as batches or quotas."""

    type: AuditTargetType

    def __init__(self, deps: ApiDependencies) -> None: ...

    async def find(self, request: Request) -> AuditTarget:
        """Return the target that a request names, even if no such object exists.

        Raises:
            ApiError: the request's body is not a JSON object.
        """
        ...

    async def read(self, target: AuditTarget) -> State | None:
        """Return the current state of a target, without secrets. Return None if the target does not exist."""
        ...


class FileTarget:
    type = AuditTargetType.FILE

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._files = deps.settings, deps.database.files

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["file_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._files.get(target.tenant, target.id) if is_file_id(target.id) else None
        return row and {"filename": row.filename, "purpose": row.purpose, "bytes": row.bytes}


class UploadTarget:
    type = AuditTargetType.UPLOAD

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._clock, self._uploads = deps.settings, deps.clock, deps.database.uploads

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["upload_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._uploads.get(target.tenant, target.id) if is_upload_id(target.id) else None
        return row and {
            "filename": row.filename,
            "purpose": row.purpose,
            "bytes": row.bytes,
            "status": row.status_at(self._clock()),
        }


class BatchTarget:
    """Finds and reads a batch of the caller's tenant, as a target in the audit log."""

    type = AuditTargetType.BATCH

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._batches = deps.settings, deps.database.batches

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["batch_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._batches.get(target.tenant, target.id) if is_batch_id(target.id) else None
        return row and _batch_state(row)


class MessageBatchTarget(BatchTarget):
    """A message batch (Anthropic's kind of batch) of the caller's tenant.

    The audit log shows its id in the form `batch_...`, like the ids of other batches.
    """

    async def find(self, request: Request) -> AuditTarget:
        id = request.path_params["message_batch_id"]
        return _of_tenant(self.type, batch_id_of(id) or id, tenant_of(request, self._settings))


class CallTarget:
    """A single call of the caller's tenant: a response of `/v1/responses`."""

    type = AuditTargetType.CALL

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._calls = deps.settings, deps.database.calls

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["response_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        call = await self._calls.get(target.tenant, target.id) if is_call_id(target.id, "resp_") else None
        return call and {"batch_id": call.batch_id, "model": call.model, "status": call.status.value}


class OperatorBatchTarget(BatchTarget):
    """A batch of any tenant, as a target in the audit log."""

    def __init__(self, deps: ApiDependencies) -> None:
        super().__init__(deps)
        self._owners = deps.database.operator_batches

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["batch_id"]
        owner = await self._owners.owner(id) if is_batch_id(id) else None
        return _of_tenant(self.type, id, owner or "")


class WebhookTarget:
    type = AuditTargetType.WEBHOOK

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._endpoints = deps.settings, deps.database.webhook_endpoints

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["webhook_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._endpoints.get(target.tenant, target.id) if is_webhook_id(target.id) else None
        if row is None:
            return None
        until, url = row.previous_until, urlsplit(row.url)
        return {
            "host": url.hostname,  # the rest of a URL is often a secret
            "events": [event.value for event in row.events],
            "details": row.details,
            "enabled": row.disabled_at is None,
            "previous_secret_until": None if until is None else int(until.timestamp()),
        }


class ScheduleTarget:
    type = AuditTargetType.SCHEDULE

    def __init__(self, deps: ApiDependencies) -> None:
        self._settings, self._schedules = deps.settings, deps.database.schedules

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["schedule_id"], tenant_of(request, self._settings))

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._schedules.get(target.tenant, target.id) if is_schedule_id(target.id) else None
        return row and {
            "cron": row.cron,
            "time_zone": row.time_zone,
            "overlap": row.overlap.value,
            "input_file_id": row.template.input_file_id,
            "key_id": row.template.caller.key_id,
        }


class NewScheduleTarget(ScheduleTarget):
    """A schedule that the request creates. `find` chooses its id, and the route reads the id with
    `new_id`.
    """

    async def find(self, request: Request) -> AuditTarget:
        request.state.new_id = new_schedule_id()
        return _of_tenant(self.type, request.state.new_id, tenant_of(request, self._settings))

    @staticmethod
    def new_id(request: Request) -> str:
        id: str = request.state.new_id
        return id


class DeadLetterTarget:
    type = AuditTargetType.DEAD_LETTER

    def __init__(self, deps: ApiDependencies) -> None:
        self._dead_letters = deps.database.dead_letters

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["letter_id"]
        found = await self._dead_letters.get(id)
        return _of_tenant(self.type, id, "" if found is None else found.tenant)

    async def read(self, target: AuditTarget) -> State | None:
        found = await self._dead_letters.get(target.id)
        return found and {
            "batch_id": found.batch_id,
            "model": found.dead_letter.model,
            "retried_as": found.retry and found.retry.batch_id,
        }


class DeadLettersTarget:
    """All dead letters (lines that used up their attempts), or those of one tenant or one batch.

    This target has no state to record.
    """

    type = AuditTargetType.DEAD_LETTER

    def __init__(self, deps: ApiDependencies) -> None:
        del deps

    async def find(self, request: Request) -> AuditTarget:
        fields = await read_optional_object(request)
        return _of_tenant(self.type, _text(fields, "batch_id"), _text(fields, "tenant"))

    async def read(self, target: AuditTarget) -> State | None:
        return None


class QuotaTarget:
    type = AuditTargetType.QUOTA

    def __init__(self, deps: ApiDependencies) -> None:
        self._quotas = deps.database.quotas

    async def find(self, request: Request) -> AuditTarget:
        tenant = _text(await _parameters(request), "tenant")
        return _of_tenant(self.type, tenant, tenant)

    async def read(self, target: AuditTarget) -> State | None:
        own = (await self._quotas.get(target.tenant)).model_dump(mode="json", exclude_none=True)
        if "models" in own:
            own["models"].sort()
        return own or None


class BudgetGroupTarget:
    type = AuditTargetType.BUDGET_GROUP

    def __init__(self, deps: ApiDependencies) -> None:
        self._groups = deps.database.budget_groups

    async def find(self, request: Request) -> AuditTarget:
        kind, name = request.path_params["kind"], request.path_params["name"]
        return _of_tenant(self.type, f"{kind}/{name}", _text(request.query_params, "tenant"))

    async def read(self, target: AuditTarget) -> State | None:
        kind, _, name = target.id.partition("/")
        if kind not in {*GroupKind}:
            return None
        for row in await self._groups.all(GroupKind(kind), target.tenant or None):
            if (row.tenant, row.name) == (target.tenant, name):
                return row.model_dump(include={"tokens_per_day", "cost_per_day", "members"})
        return None


class KeyTarget:
    """An API key of any tenant, as a target in the audit log. The path of the request contains the key's
    id.
    """

    type = AuditTargetType.KEY

    def __init__(self, deps: ApiDependencies) -> None:
        self._keys = deps.database.api_keys

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["key_id"]
        tenants = (row.tenant for row in await self._keys.all() if row.id == id)
        return _of_tenant(self.type, id, next(tenants, ""))

    async def read(self, target: AuditTarget) -> State | None:
        rows = (row for row in await self._keys.all(target.tenant) if row.id == target.id)
        if (row := next(rows, None)) is None:
            return None
        return row.model_dump(mode="json", include={"scopes", "label", "expires_at", "revoked_at"})


class NewKeyTarget(KeyTarget):
    """An API key that the request creates. `find` chooses the key's id before the key exists, so that the
    audit log can name it.
    """

    async def find(self, request: Request) -> AuditTarget:
        request.state.new_key_id = new_key_id()
        tenant = _text(await read_json_object(request), "tenant")
        return _of_tenant(self.type, self.id_of(request), tenant)

    @staticmethod
    def id_of(request: Request) -> str:
        """Return the id that was chosen for the key that the request creates."""
        return str(request.state.new_key_id)


class RateTarget:
    """The rate limit of one model, or the rate limit over all models. For the latter, the target's id is
    empty.
    """

    type = AuditTargetType.RATE

    def __init__(self, deps: ApiDependencies) -> None:
        self._rates = deps.database.rates

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, _text(await _parameters(request), "model") or ALL_MODELS, "")

    async def read(self, target: AuditTarget) -> State | None:
        for row in await self._rates.all():
            if row.model == target.id:
                return {"requests_per_second": row.requests_per_second}
        return None


class HoldTarget:
    """A hold: an operator's order to send no lines of a tenant or a model. Its id is `tenant/NAME` or
    `model/NAME`.
    """

    type = AuditTargetType.HOLD

    def __init__(self, deps: ApiDependencies) -> None:
        self._holds = deps.database.holds

    async def find(self, request: Request) -> AuditTarget:
        fields = await _parameters(request)
        tenant, model = _text(fields, "tenant"), _text(fields, "model")
        kind = HoldKind.TENANT if tenant else HoldKind.MODEL
        return _of_tenant(self.type, f"{kind}/{tenant or model}", tenant)

    async def read(self, target: AuditTarget) -> State | None:
        for hold in await self._holds.all():
            if f"{hold.kind}/{hold.name}" == target.id:
                return {"held_at": int(hold.held_at.timestamp())}
        return None


class ModelTarget:
    """The changes of a model that operators made at run time. A model without such changes has no state
    here.
    """

    type = AuditTargetType.MODEL

    def __init__(self, deps: ApiDependencies) -> None:
        self._changes = deps.database.model_changes

    async def find(self, request: Request) -> AuditTarget:
        return _of_tenant(self.type, request.path_params["model"], "")

    async def read(self, target: AuditTarget) -> State | None:
        for row in await self._changes.all():
            if row.model != target.id:
                continue
            if row.is_removal:
                return {"version": row.version, "removed": True}
            if row.config is None:
                return {"version": row.version, "changed": row.patch}
            config = row.config.model_dump(mode="json", exclude_defaults=True)
            return {"version": row.version, "registered": config}
        return None


def _of_tenant(type: AuditTargetType, id: str, tenant: str) -> AuditTarget:
    """Return a target that belongs to `tenant`.

    `id` and `tenant` are shortened to 256 characters, because the request is not validated yet.
    """
    id, tenant = storable(id)[:_MAX_ID_CHARACTERS], storable(tenant)[:_MAX_ID_CHARACTERS]
    return AuditTarget(type=type, id=id, tenant=tenant)


def _batch_state(row: BatchRow) -> State:
    status = visible_status(row.status, cancel_requested=row.cancel_requested_at is not None)
    return {
        "status": status,
        "priority": row.order.priority,
        "max_cost": row.order.max_cost,
        "files_pending": row.files_pending,
    }


async def _parameters(request: Request) -> Mapping[str, object]:
    """Return the parameters of a request: for DELETE the query, for other methods the body."""
    return request.query_params if request.method == "DELETE" else await read_json_object(request)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
