"""Translate errors of storage, database and Temporal into the failures that workflows know.

StorageUnavailable, DatabaseUnavailable, RPCError   retried by the activity's retry policy
PlanDamaged, SegmentDamaged                         never retried, because a retry would fail in the same way
ObjectMissing                                       becomes the failure that the caller passes as `missing`
all other errors                                    unchanged; retried a few times (see `activity_metrics.py`)

Exception: if Temporal would refuse the same call again, an RPCError counts as one of the "other errors".
"""

import contextlib
from collections.abc import AsyncGenerator

from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.errors import NEVER_RETRIED, Failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.segment_format import SegmentDamaged
from batchwright.storage.base import ObjectMissing, StorageUnavailable

# Temporal would return the same status if the call were retried.
_PERMANENT_STATUSES = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.ALREADY_EXISTS,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.OUT_OF_RANGE,
    RPCStatusCode.UNIMPLEMENTED,
)


@contextlib.asynccontextmanager
async def translated(missing: Failure = Failure.PLAN_DAMAGED) -> AsyncGenerator[None]:
    """Context manager that replaces errors of storage, database and Temporal by an ApplicationError.

    Workflows decide by the type of the ApplicationError what to do next. All other errors are raised
    unchanged.

    Args:
        missing: type of the ApplicationError that replaces ObjectMissing (storage does not have an object).
    """
    try:
        yield
    except Exception as error:
        kind = failure_of(error, missing)
        if kind is None:
            raise
        raise failure(kind, str(error)) from error


def failure(kind: Failure, message: str) -> ApplicationError:
    """Create an ApplicationError with the type `kind`.

    Temporal retries the activity that raises it, unless `kind` is in `NEVER_RETRIED`.
    """
    return ApplicationError(message, type=kind, non_retryable=kind in NEVER_RETRIED)


def failure_of(error: Exception, missing: Failure = Failure.PLAN_DAMAGED) -> Failure | None:
    """Return the failure type for an error of storage, database or Temporal; None for every other error.

    Args:
        missing: failure type for an object that is missing in storage.
    """
    match error:
        case StorageUnavailable():
            return Failure.STORAGE_UNAVAILABLE
        case DatabaseUnavailable():
            return Failure.DATABASE_UNAVAILABLE
        case RPCError(status=status) if status not in _PERMANENT_STATUSES:
            return Failure.TEMPORAL_UNAVAILABLE
        case PlanDamaged():
            return Failure.PLAN_DAMAGED
        case SegmentDamaged():
            return Failure.RESULTS_DAMAGED
        case ObjectMissing():
            return missing
        case _:
            return None
