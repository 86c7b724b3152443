"""Finds the targets of actions for the audit log. A target is the object that a request changes.

The audit log also shows the state of the object. The state contains no secrets, and no content of requests or
results. As a second protection, `recorder.py` redacts all text that looks like a secret.
"""

from abc import ABC, abstractmethod
from urllib.parse import urlsplit

from fastapi import Request
from pydantic import JsonValue

from batchwright.api.auth.caller import tenant_of
from batchwright.api.batch_rows import BatchRows
from batchwright.api.dependencies import ApiDependencies
from batchwright.contracts.api_objects.audit_log import AuditTargetType
from batchwright.database.records import BatchRow
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.rules.batch_states import visible_status
from batchwright.rules.ids import (
    batch_id_of,
    is_call_id,
    is_file_id,
    is_schedule_id,
    is_upload_id,
    is_webhook_id,
    new_schedule_id,
)
from batchwright.rules.json_text import storable

_MAX_ID_CHARACTERS = 256
State = dict[str, JsonValue]


class TargetKind(ABC):
    """The base class of the audit log's target kinds, such as batches or quotas.

    A target is the object that an action changes. A target kind finds the target of a request, and reads the
    target's state.
    """

    type: AuditTargetType

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._database = deps, deps.database

    @abstractmethod
    async def find(self, request: Request) -> AuditTarget:
        """Return the target: the object that the request would change. The object does not have to exist.

        Raises:
            ApiError: the request's body is not a JSON object.
        """

    @abstractmethod
    async def read(self, target: AuditTarget) -> State | None:
        """Return the current state of a target (the object that an action changes), without secrets. Return
        None if the object does not exist.
        """


class _OwnTarget(TargetKind):
    """The base class for the kinds of objects that belong to the caller's tenant, such as files or batches.

    The audit log records the actions that change these objects. `_id_name` is the name of the path parameter
    that contains the object's id.
    """

    _id_name: str

    async def find(self, request: Request) -> AuditTarget:
        return self._own(request, request.path_params[self._id_name])

    def _own(self, request: Request, id: str) -> AuditTarget:
        return target_of_tenant(self.type, id, tenant_of(request, self._deps.settings))


class FileTarget(_OwnTarget):
    type, _id_name = AuditTargetType.FILE, "file_id"

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._database.files.get(target.tenant, target.id) if is_file_id(target.id) else None
        return row and {"filename": row.filename, "purpose": row.purpose, "bytes": row.bytes}


class UploadTarget(_OwnTarget):
    type, _id_name = AuditTargetType.UPLOAD, "upload_id"

    async def read(self, target: AuditTarget) -> State | None:
        row = await self._database.uploads.get(target.tenant, target.id) if is_upload_id(target.id) else None
        return row and {
            "filename": row.filename,
            "purpose": row.purpose,
            "bytes": row.bytes,
            "status": row.status_at(self._deps.clock()),
        }


class BatchTarget(_OwnTarget):
    """The audit log's target kind for actions that change a batch of the caller's tenant."""

    type, _id_name = AuditTargetType.BATCH, "batch_id"

    def __init__(self, deps: ApiDependencies) -> None:
        super().__init__(deps)
        self.rows = BatchRows(deps)

    async def read(self, target: AuditTarget) -> State | None:
        row = await self.rows.find(target.tenant, target.id)
        return row and _batch_state(row)


class MessageBatchTarget(BatchTarget):
    """The audit log's target kind for actions that change a message batch of the caller's tenant.

    A message batch is a batch of Anthropic's API. The audit log shows the id of a message batch in the form
    `batch_...`, like the ids of other batches.
    """

    async def find(self, request: Request) -> AuditTarget:
        id = request.path_params["message_batch_id"]
        return self._own(request, batch_id_of(id) or id)


class CallTarget(_OwnTarget):
    """The audit log's target kind for actions that change a call of the caller's tenant.

    A call is a request that a client sends without a batch. Clients see the call as a response of
    `/v1/responses`.
    """

    type, _id_name = AuditTargetType.CALL, "response_id"

    async def read(self, target: AuditTarget) -> State | None:
        if not is_call_id(target.id, "resp_"):
            return None
        call = await self._database.calls.get(target.tenant, target.id)
        return call and {"batch_id": call.batch_id, "model": call.model, "status": call.status.value}


class WebhookTarget(_OwnTarget):
    type, _id_name = AuditTargetType.WEBHOOK, "webhook_id"

    async def read(self, target: AuditTarget) -> State | None:
        if not is_webhook_id(target.id):
            return None
        row = await self._database.webhook_endpoints.get(target.tenant, target.id)
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


class ScheduleTarget(_OwnTarget):
    type, _id_name = AuditTargetType.SCHEDULE, "schedule_id"

    async def read(self, target: AuditTarget) -> State | None:
        if not is_schedule_id(target.id):
            return None
        row = await self._database.schedules.get(target.tenant, target.id)
        return row and {
            "cron": row.cron,
            "time_zone": row.time_zone,
            "overlap": row.overlap.value,
            "input_file_id": row.template.input_file_id,
            "key_id": row.template.caller.key_id,
        }


class NewScheduleTarget(ScheduleTarget):
    """The audit log's target kind for requests that create a schedule.

    The audit log needs the schedule's id before the schedule exists. So `find` chooses the id, and the route
    gets the id from `new_id`.
    """

    async def find(self, request: Request) -> AuditTarget:
        request.state.new_id = new_schedule_id()
        return self._own(request, request.state.new_id)

    @staticmethod
    def new_id(request: Request) -> str:
        id: str = request.state.new_id
        return id


def target_of_tenant(type: AuditTargetType, id: str, tenant: str) -> AuditTarget:
    """Return a target (the object that an action changes) that belongs to `tenant`.

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
