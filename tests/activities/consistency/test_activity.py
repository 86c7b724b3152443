"""The activity that runs the consistency check regularly.

It reports differences between the database, the storage and Temporal. It repairs them only if the setting
allows it, and stores how many it found.
"""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.consistency.activity import ConsistencyChecking
from batchwright.activities.consistency.report import DifferenceKind
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.consistency import (
    ConsistencyCheckOrder,
    ConsistencyCheckResult,
    DifferenceCount,
)
from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import load
from tests.activities.consistency.test_check import ID, ConsistencyFixture


async def checked(fixture: ConsistencyFixture, *, repair: bool) -> ConsistencyCheckResult:
    settings = load(consistency_repair=repair)
    consistency = ConsistencyChecking(fixture.database, fixture.storage, fixture.runs, settings)
    return await ActivityEnvironment().run(consistency.check_consistency, ConsistencyCheckOrder())


async def stored_count(fixture: ConsistencyFixture, kind: DifferenceKind) -> DifferenceCount:
    return (await fixture.database.consistency_checks.latest())[kind].counted


async def test_differences_are_counted_and_not_repaired() -> None:
    fixture = ConsistencyFixture()
    await fixture.live()
    result = await checked(fixture, repair=False)
    assert (result.rows, result.counts[DifferenceKind.RUN_MISSING]) == (1, DifferenceCount(found=1, left=1))
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == DifferenceCount(found=1, left=1)
    assert fixture.runs.started == []


async def test_safe_repairs_are_made_if_the_setting_allows_them() -> None:
    fixture = ConsistencyFixture()
    await fixture.live()
    await checked(fixture, repair=True)
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == DifferenceCount(found=1, left=0)
    assert fixture.runs.started == [ID]


async def test_the_next_consistency_check_replaces_the_findings() -> None:
    fixture = ConsistencyFixture()
    await fixture.live()
    await checked(fixture, repair=False)
    fixture.run()
    await checked(fixture, repair=False)
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == DifferenceCount()


async def test_an_unavailable_database_is_retried() -> None:
    fixture = ConsistencyFixture()
    fixture.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(ApplicationError) as caught:
        await checked(fixture, repair=False)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)
