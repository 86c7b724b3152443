"""Objects of the audit log, which records who changed or deleted an object."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from batchwright.contracts.api_objects.pages import ListPage


class AuditAction(StrEnum):
    """Actions that the audit log records. The names never change."""

    BATCH_ABANDON = "batch.abandon"
    BATCH_CANCEL = "batch.cancel"
    BATCH_DELETE = "batch.delete"
    BATCH_LIMIT_COST = "batch.limit_cost"
    BATCH_PAUSE = "batch.pause"
    BATCH_PRIORITIZE = "batch.prioritize"
    BATCH_RESUME = "batch.resume"
    BUDGET_GROUP_DELETE = "budget_group.delete"
    BUDGET_GROUP_SET = "budget_group.set"
    CALL_CANCEL = "call.cancel"
    CONSISTENCY_REPAIR = "consistency.repair"
    DEAD_LETTER_DELETE = "dead_letter.delete"
    DEAD_LETTER_RETRY = "dead_letter.retry"
    DEAD_LETTER_RETRY_ALL = "dead_letter.retry_all"
    FILE_DELETE = "file.delete"
    HOLD_RELEASE = "hold.release"
    HOLD_SET = "hold.set"
    KEY_CREATE = "key.create"
    KEY_LIMIT = "key.limit"
    KEY_REVOKE = "key.revoke"
    MODEL_CHANGE = "model.change"
    MODEL_REGISTER = "model.register"
    MODEL_REMOVE = "model.remove"
    MODEL_REVERT = "model.revert"
    QUOTA_RESET = "quota.reset"
    QUOTA_SET = "quota.set"
    RATE_RESET = "rate.reset"
    RATE_SET = "rate.set"
    SCHEDULE_CHANGE = "schedule.change"
    SCHEDULE_CREATE = "schedule.create"
    SCHEDULE_DELETE = "schedule.delete"
    SCHEDULE_PAUSE = "schedule.pause"
    SCHEDULE_RESUME = "schedule.resume"
    SCHEDULE_TRIGGER = "schedule.trigger"
    STORAGE_ADOPT = "storage.adopt"
    TENANT_CREATE = "tenant.create"
    TENANT_DISABLE = "tenant.disable"
    TENANT_ENABLE = "tenant.enable"
    UPLOAD_CANCEL = "upload.cancel"
    WEBHOOK_CHANGE = "webhook.change"
    WEBHOOK_DELETE = "webhook.delete"
    WEBHOOK_ROTATE = "webhook.rotate"


class AuditTargetType(StrEnum):
    """Kinds of objects that a recorded action can change."""

    BATCH = "batch"
    BUDGET_GROUP = "budget_group"
    CALL = "call"
    DEAD_LETTER = "dead_letter"
    DEPLOYMENT = "deployment"
    FILE = "file"
    HOLD = "hold"
    KEY = "key"
    MODEL = "model"
    QUOTA = "quota"
    RATE = "rate"
    SCHEDULE = "schedule"
    TENANT = "tenant"
    UPLOAD = "upload"
    WEBHOOK = "webhook"


class AuditOutcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


class AuditActorObject(BaseModel):
    tenant: str | None = Field(description="tenant of the request; null for a command")
    key_id: str | None = Field(description="id of the API key; null without a key")
    user: str | None = Field(description="user of the request, or of the operating system for a command")
    address: str | None = Field(description="address of the client, or host name for a command")


class AuditTargetObject(BaseModel):
    type: AuditTargetType
    id: str | None = Field(description="null if the action is about all things of the type")
    tenant: str | None = Field(description="tenant to which the target belongs; null if it has none")


class AuditEntryObject(BaseModel):
    """One action that the audit log has recorded.

    `before` is the changed object before the action, and `after` is the same object after the action.
    """

    id: str
    object: Literal["audit_log.entry"] = "audit_log.entry"
    created_at: int = Field(description="Unix time in seconds at which the action began")
    source: Literal["api", "cli"]
    actor: AuditActorObject
    request_id: str | None = Field(description="`x-request-id` of the request; null for a command")
    action: AuditAction
    target: AuditTargetObject
    before: JsonValue = Field(description="null if the target did not exist")
    after: JsonValue = Field(description="null if the target no longer exists, or the action did not succeed")
    outcome: AuditOutcome = Field(
        description="`refused`: nothing was changed. `failed`: an error ended the action, which may have "
        "changed something. `unknown`: the action is still running, or its process ended before it recorded "
        "the outcome"
    )
    code: str | None = Field(
        description="error code or HTTP status of a refused action, or name of the error of a failed action"
    )


class AuditLogPage(ListPage[AuditEntryObject]):
    pass
