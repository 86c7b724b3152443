"""Errors of storage, database and plans become errors of Temporal activities: which type, and whether they
are retried.
"""

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.errors import translated
from batchwright.contracts.errors import Failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.segment_format import SegmentDamaged
from batchwright.storage.base import ObjectMissing, StorageFull, StorageUnavailable


@pytest.mark.parametrize(
    ("error", "kind", "retried"),
    [
        (StorageUnavailable("s"), Failure.STORAGE_UNAVAILABLE, True),
        (StorageFull("s"), Failure.STORAGE_UNAVAILABLE, True),
        (DatabaseUnavailable("d"), Failure.DATABASE_UNAVAILABLE, True),
        (PlanDamaged("p"), Failure.PLAN_DAMAGED, False),
        (SegmentDamaged("g"), Failure.RESULTS_DAMAGED, False),
        (ObjectMissing("o"), Failure.PLAN_DAMAGED, False),
    ],
)
async def test_each_error_has_its_meaning(error: Exception, kind: Failure, retried: bool) -> None:
    with pytest.raises(ApplicationError) as caught:
        async with translated():
            raise error
    assert (caught.value.type, caught.value.non_retryable) == (kind, not retried)
    assert caught.value.message == str(error)


async def test_the_caller_chooses_the_error_for_a_missing_object() -> None:
    with pytest.raises(ApplicationError) as caught:
        async with translated(Failure.INPUT_VANISHED):
            raise ObjectMissing("the input")
    assert caught.value.type == Failure.INPUT_VANISHED


async def test_other_errors_are_not_translated() -> None:
    with pytest.raises(KeyError):
        async with translated():
            raise KeyError("a bug")
