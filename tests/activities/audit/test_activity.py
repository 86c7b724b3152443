"""The scheduled audit: it reports, repairs only if the setting allows it, and stores its counts."""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.audit.activity import Auditing
from batchwright.activities.audit.differences import DifferenceKind
from batchwright.contracts.audit import AuditCount, AuditOrder, AuditResult
from batchwright.contracts.errors import Failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import load
from tests.activities.audit.test_compare import ID, AuditFixture


async def audited(fixture: AuditFixture, *, repair: bool) -> AuditResult:
    settings = load(audit_repair=repair)
    auditing = Auditing(fixture.database, fixture.storage, fixture.runs, settings)
    return await ActivityEnvironment().run(auditing.audit, AuditOrder())


async def stored_count(fixture: AuditFixture, kind: DifferenceKind) -> AuditCount:
    return (await fixture.database.audits.latest())[kind].counted


async def test_differences_are_counted_and_not_repaired() -> None:
    fixture = AuditFixture()
    await fixture.live()
    result = await audited(fixture, repair=False)
    assert (result.rows, result.counts[DifferenceKind.RUN_MISSING]) == (1, AuditCount(found=1, left=1))
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == AuditCount(found=1, left=1)
    assert fixture.runs.started == []


async def test_safe_repairs_are_made_if_the_setting_allows_them() -> None:
    fixture = AuditFixture()
    await fixture.live()
    await audited(fixture, repair=True)
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == AuditCount(found=1, left=0)
    assert fixture.runs.started == [ID]


async def test_the_next_audit_replaces_the_findings() -> None:
    fixture = AuditFixture()
    await fixture.live()
    await audited(fixture, repair=False)
    fixture.run()
    await audited(fixture, repair=False)
    assert await stored_count(fixture, DifferenceKind.RUN_MISSING) == AuditCount()


async def test_an_unavailable_database_is_retried() -> None:
    fixture = AuditFixture()
    fixture.database.rows.failing = DatabaseUnavailable("away")
    with pytest.raises(ApplicationError) as caught:
        await audited(fixture, repair=False)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)
