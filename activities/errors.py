"""What the adapters raise, as the failures workflows know.

StorageUnavailable, DatabaseUnavailable   retried by the activity's retry policy
PlanDamaged, SegmentDamaged, missing      never retried: no attempt would find anything else
"""

import contextlib
from collections.abc import AsyncGenerator

from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import NEVER_RETRIED, Failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.plan import PlanDamaged
from batchwright.rules.segments import SegmentDamaged
from batchwright.storage.base import ObjectMissing, StorageUnavailable


@contextlib.asynccontextmanager
async def translated(missing: Failure = Failure.PLAN_DAMAGED) -> AsyncGenerator[None]:
    """Raises ApplicationError in place of an adapter's error; `missing` is what a missing object means."""
    try:
        yield
    except (StorageUnavailable, DatabaseUnavailable, PlanDamaged, SegmentDamaged, ObjectMissing) as error:
        raise failure(_meaning(error, missing), str(error)) from error


def failure(kind: Failure, message: str) -> ApplicationError:
    """The error of `kind`, retryable unless contracts.errors.NEVER_RETRIED lists it."""
    return ApplicationError(message, type=kind, non_retryable=kind in NEVER_RETRIED)


def _meaning(error: Exception, missing: Failure) -> Failure:
    match error:
        case StorageUnavailable():
            return Failure.STORAGE_UNAVAILABLE
        case DatabaseUnavailable():
            return Failure.DATABASE_UNAVAILABLE
        case PlanDamaged():
            return Failure.PLAN_DAMAGED
        case SegmentDamaged():
            return Failure.RESULTS_DAMAGED
        case _:
            return missing
