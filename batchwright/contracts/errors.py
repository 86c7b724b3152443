"""Error codes and error types that one process writes and another process reads.

`LineCode` is `error.code` in the error file, for a line that got no HTTP response. `Failure` is the `type` of
an ApplicationError that an activity raises. Temporal retries the activity, unless the type of the error is in
`NEVER_RETRIED`.
"""

from enum import StrEnum


class LineCode(StrEnum):
    BATCH_EXPIRED = "batch_expired"
    BATCH_CANCELLED = "batch_cancelled"
    BATCH_FAILED = "batch_failed"
    BUDGET_EXCEEDED = "budget_exceeded"
    REQUEST_TIMEOUT = "request_timeout"
    CONNECTION_ERROR = "connection_error"
    INVALID_RESPONSE = "invalid_response"
    RESPONSE_TOO_LARGE = "response_too_large"
    INVALID_REQUEST = "invalid_request"  # only in message batches; in other batches, it fails the batch
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
    LineCode.BUDGET_EXCEEDED: "This request was not executed because the batch reached the cap on its cost.",
    LineCode.WORKER_CRASHED: "The worker that executed this request crashed each time, the last times with "
    "nothing else of its slice in flight.",
}


# Codes of errors in `errors` of a failed batch that are not caused by its input. Such a batch can be resumed.
SYSTEM_ERROR = "system_error"
RESUMABLE_CODES = (SYSTEM_ERROR, LineCode.WORKER_CRASHED)


class Failure(StrEnum):
    TURN_OVER = "TurnOver"  # benign: the slice releases its slot and continues in its next turn
    DEFERRED = "Deferred"  # benign: no backend of the model accepts requests now
    OVER_QUOTA = "OverQuota"  # benign: the batch waits for its tenant's quota; the message is for the tenant
    CANCEL_ACCEPTED = "CancelAccepted"  # benign: the batch can no longer complete
    BATCH_LIVE = "BatchLive"  # benign: the run of a schedule waits for the end of its batch
    OWNERSHIP_LOST = "OwnershipLost"  # another attempt holds the lease of the slice
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    DATABASE_UNAVAILABLE = "DatabaseUnavailable"
    TEMPORAL_UNAVAILABLE = "TemporalUnavailable"
    UNEXPECTED = "Unexpected"  # an unexpected exception: retried a few times, then final
    PLAN_DAMAGED = "PlanDamaged"
    RESULTS_DAMAGED = "ResultsDamaged"
    INPUT_VANISHED = "InputVanished"
    PAYLOADS_TOO_LARGE = "PayloadsTooLarge"
    WORKER_CRASHED = "WorkerCrashed"  # the step crashed one worker after the other
    MODEL_RUN_FAILED = "ModelRunFailed"
    FOREIGN_STORAGE = (
        "ForeignStorage"  # the storage belongs to another database: rows and objects are not compared
    )
    RETENTION_FAILED = "RetentionFailed"


# Messages that tenants see instead of the error's own message, which may contain hosts and paths. The error's
# own message is in the log and in the workflow's history.
FAILURE_SENTENCES: dict[str, str] = {
    Failure.STORAGE_UNAVAILABLE: "object storage is unavailable.",
    Failure.DATABASE_UNAVAILABLE: "the database is unavailable.",
    Failure.DEFERRED: "no backend has reported which models it serves.",
    Failure.PLAN_DAMAGED: "the prepared input is damaged.",
    Failure.RESULTS_DAMAGED: "stored results are damaged.",
    Failure.INPUT_VANISHED: "the input file is no longer in storage.",
    Failure.WORKER_CRASHED: "workers crashed each time, at last while no other suspected work was running. "
    "The operator finds out why the workers ended, for example at their memory limit. Then resume the batch, "
    "or submit its file in smaller parts.",
}

NEVER_RETRIED: list[str] = [
    Failure.PLAN_DAMAGED,
    Failure.RESULTS_DAMAGED,
    Failure.INPUT_VANISHED,
    Failure.PAYLOADS_TOO_LARGE,
    Failure.WORKER_CRASHED,
    Failure.FOREIGN_STORAGE,
]
