"""Error codes and types that cross process borders.

LineCode        the `error.code` of an error line without an HTTP answer
Failure         the `type` of an ApplicationError an activity raises; retried unless listed in NEVER_RETRIED
"""

from enum import StrEnum


class LineCode(StrEnum):
    BATCH_EXPIRED = "batch_expired"
    BATCH_CANCELLED = "batch_cancelled"
    BATCH_FAILED = "batch_failed"
    REQUEST_TIMEOUT = "request_timeout"
    CONNECTION_ERROR = "connection_error"
    INVALID_RESPONSE = "invalid_response"
    RESPONSE_TOO_LARGE = "response_too_large"
    MODEL_NOT_FOUND = "model_not_found"
    POLICY_REJECTED = "policy_rejected"
    WORKER_CRASHED = "worker_crashed"
    HOOK_FAILED = "hook_failed"
    JOB_FAILED = "job_failed"
    JOB_LOST = "job_lost"


LINE_MESSAGES: dict[LineCode, str] = {
    LineCode.BATCH_EXPIRED: "This request could not be executed before the completion window expired.",
    LineCode.BATCH_CANCELLED: "This request was not executed because the batch was cancelled.",
    LineCode.BATCH_FAILED: "This request was not executed because the batch failed.",
    LineCode.WORKER_CRASHED: "The worker that executed this request crashed each time, the last times with "
    "nothing else of its slice in flight.",
}


class Failure(StrEnum):
    TURN_OVER = "TurnOver"  # benign: the slice gives its slot back and goes on in its next turn
    DEFERRED = "Deferred"  # benign: the model's backends take nothing now
    CANCEL_ACCEPTED = "CancelAccepted"  # benign: the batch may not complete any more
    OWNERSHIP_LOST = "OwnershipLost"  # another attempt owns the slice
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    DATABASE_UNAVAILABLE = "DatabaseUnavailable"
    PLAN_DAMAGED = "PlanDamaged"
    RESULTS_DAMAGED = "ResultsDamaged"
    INPUT_VANISHED = "InputVanished"
    PAYLOADS_TOO_LARGE = "PayloadsTooLarge"
    MODEL_RUN_FAILED = "ModelRunFailed"
    FOREIGN_STORAGE = "ForeignStorage"  # marked by another database: rows and objects are not compared
    RETENTION_FAILED = "RetentionFailed"


NEVER_RETRIED: list[str] = [
    Failure.PLAN_DAMAGED,
    Failure.RESULTS_DAMAGED,
    Failure.INPUT_VANISHED,
    Failure.PAYLOADS_TOO_LARGE,
    Failure.FOREIGN_STORAGE,
]
