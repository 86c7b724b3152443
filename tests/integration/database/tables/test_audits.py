"""Findings of the latest audit of every kind."""

from datetime import UTC, datetime, timedelta

from batchwright.activities.audit.differences import DifferenceKind
from batchwright.contracts.audit import AuditCount
from batchwright.database.database import Database
from batchwright.database.tables.audits import RecordedAudit

START = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
LATER = START + timedelta(hours=1)


async def test_before_the_first_audit_every_kind_has_no_findings(any_database: Database) -> None:
    found = await any_database.audits.latest()
    assert found.keys() == {kind.value for kind in DifferenceKind}
    assert all(audited.counted == AuditCount() for audited in found.values())


async def test_an_audit_replaces_the_one_before(any_database: Database) -> None:
    table = any_database.audits
    await table.record(
        {"counts": AuditCount(found=3, left=2), "run_open": AuditCount(found=1, left=1)}, START
    )
    await table.record({"counts": AuditCount(found=1, left=0), "run_open": AuditCount()}, LATER)
    found = await table.latest()
    assert found["counts"] == RecordedAudit(AuditCount(found=1, left=0), LATER)
    assert found["run_open"] == RecordedAudit(AuditCount(), LATER)


async def test_an_audit_that_was_overtaken_changes_nothing(any_database: Database) -> None:
    table = any_database.audits
    await table.record({"counts": AuditCount(found=1, left=1)}, LATER)
    await table.record({"counts": AuditCount(found=9, left=9)}, START)
    assert (await table.latest())["counts"] == RecordedAudit(AuditCount(found=1, left=1), LATER)
