"""The scheduled audit: tells without mending, mends where the setting says so, and notes what it found."""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.audit.differences import Kind
from activities.auditing import Auditing
from batchwright.contracts.audit import AuditCount, AuditOrder, AuditResult
from batchwright.contracts.errors import Failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import load
from tests.activities.test_audit import ID, House


async def audited(house: House, *, repair: bool) -> AuditResult:
    settings = load(audit_repair=repair)
    auditing = Auditing(house.database, house.storage, house.runs, settings)
    return await ActivityEnvironment().run(auditing.audit, AuditOrder())


async def noted(house: House, kind: Kind) -> AuditCount:
    return (await house.database.audits.latest())[kind].counted


async def test_what_differs_is_counted_and_left_alone() -> None:
    house = House()
    await house.live()
    result = await audited(house, repair=False)
    assert (result.rows, result.counts[Kind.RUN_MISSING]) == (1, AuditCount(found=1, left=1))
    assert await noted(house, Kind.RUN_MISSING) == AuditCount(found=1, left=1)
    assert house.runs.started == []


async def test_where_the_setting_allows_it_what_is_safe_is_mended() -> None:
    house = House()
    await house.live()
    await audited(house, repair=True)
    assert await noted(house, Kind.RUN_MISSING) == AuditCount(found=1, left=0)
    assert house.runs.started == [ID]


async def test_the_next_audit_takes_the_place_of_what_was_found() -> None:
    house = House()
    await house.live()
    await audited(house, repair=False)
    house.run()
    await audited(house, repair=False)
    assert await noted(house, Kind.RUN_MISSING) == AuditCount()


async def test_a_database_that_is_away_is_tried_again() -> None:
    house = House()
    house.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(ApplicationError) as caught:
        await audited(house, repair=False)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)
