"""What failed, in one sentence, out of Temporal's nested failures."""

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TimeoutError,
)


def cause_of(error: BaseException) -> str:
    """The innermost message that says something; wrappers such as "Activity task failed" do not."""
    cause: BaseException = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)) and cause.cause is not None:
        cause = cause.cause
    match cause:
        case ApplicationError():
            return cause.message
        case CancelledError():
            return "it was cancelled from outside."
        case TimeoutError():
            return f"it ran out of time ({_reason(cause)})."
        case _:
            return str(cause) or type(cause).__name__


def _reason(error: TimeoutError) -> str:
    last = error.cause
    return last.message if isinstance(last, ApplicationError) else error.message
