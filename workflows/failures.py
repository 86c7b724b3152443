"""Describe in one sentence why a step (an activity of a batch) failed, from Temporal's nested failures."""

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    RetryState,
    TimeoutError,
)

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import FAILURE_SENTENCES, SYSTEM_ERROR, Failure, LineCode

_FOR_TENANTS = (Failure.UNEXPECTED, Failure.MODEL_RUN_FAILED)  # their messages are written for tenants
_UNKNOWN = "an internal error. The operator finds it in the log."


def cause_of(error: BaseException) -> str:
    """Return the message of the innermost error. The outer errors only say "Activity task failed"."""
    cause: BaseException = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)) and cause.cause is not None:
        cause = cause.cause
    match cause:
        case ApplicationError():
            return cause.message
        case CancelledError():
            return "it was cancelled from outside."
        case TimeoutError(cause=ApplicationError() as last):
            return f"it ran out of time ({last.message})."
        case TimeoutError():
            return f"it ran out of time ({cause.message})."
        case _:
            return str(cause) or type(cause).__name__


def sentence_for_tenant(error: BaseException) -> str:
    """Return a sentence for tenants that says why an activity failed. It names no host, path or exception."""
    cause: BaseException | None = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, TimeoutError):
        last = sentence_for_tenant(cause.cause) if cause.cause is not None else ""
        return f"it ran out of time: {last}" if last else "it ran out of time."
    if isinstance(cause, CancelledError):
        return "it was cancelled by an operator."
    if not isinstance(cause, ApplicationError):
        return _UNKNOWN
    if cause.type in _FOR_TENANTS:
        return cause.message
    return FAILURE_SENTENCES.get(cause.type or "", _UNKNOWN)


def code_for_tenant(error: BaseException) -> str:
    """Return the error code of a batch that fails because a step (activity) failed. Tenants see the code."""
    cause: BaseException | None = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)):
        cause = cause.cause
    is_crash = isinstance(cause, ApplicationError) and cause.type == Failure.WORKER_CRASHED
    return LineCode.WORKER_CRASHED if is_crash else SYSTEM_ERROR


def abandoned(*, results_kept: bool) -> str:
    """Return the error message of a batch that an operator gave up with the signal `abandon`.

    Such a batch has no output and error file.

    Args:
        results_kept: True if the batch was given up after the work on its lines had ended, and only its files
            had to be written. The stored results are kept. False if the batch was given up while its input
            was being read, before any line was sent.
    """
    if results_kept:
        return (
            "An operator stopped the writing of the files, because it could not be completed. The results "
            "are kept: resume the batch to get its files."
        )
    return (
        "An operator stopped the reading of the input, because it could not be completed. No line was sent: "
        "resume the batch to send its lines."
    )


def gave_up_on_storage(error: BaseException | None) -> bool:
    """Return True if storage was unavailable and the options of the failed activity did not allow a retry.

    Return False for every other error and for None.
    """
    if not isinstance(error, ActivityError) or error.retry_state != RetryState.NON_RETRYABLE_FAILURE:
        return False
    cause = error.cause
    return isinstance(cause, ApplicationError) and cause.type == Failure.STORAGE_UNAVAILABLE
