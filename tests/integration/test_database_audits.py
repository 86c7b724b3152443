"""What the last audit found: of every kind, the latest."""

from datetime import UTC, datetime, timedelta

from activities.audit.differences import Kind
from batchwright.contracts.audit import AuditCount
from batchwright.database.audits_base import Audited
from batchwright.database.base import DatabaseLike

START = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
LATER = START + timedelta(hours=1)


async def test_before_any_audit_every_kind_has_nothing(any_database: DatabaseLike) -> None:
    found = await any_database.audits.latest()
    assert found.keys() == {kind.value for kind in Kind}
    assert all(audited.counted == AuditCount() for audited in found.values())


async def test_an_audit_takes_the_place_of_the_one_before(any_database: DatabaseLike) -> None:
    table = any_database.audits
    await table.note({"counts": AuditCount(found=3, left=2), "run_open": AuditCount(found=1, left=1)}, START)
    await table.note({"counts": AuditCount(found=1, left=0), "run_open": AuditCount()}, LATER)
    found = await table.latest()
    assert found["counts"] == Audited(AuditCount(found=1, left=0), LATER)
    assert found["run_open"] == Audited(AuditCount(), LATER)


async def test_one_that_was_overtaken_changes_nothing(any_database: DatabaseLike) -> None:
    table = any_database.audits
    await table.note({"counts": AuditCount(found=1, left=1)}, LATER)
    await table.note({"counts": AuditCount(found=9, left=9)}, START)
    assert (await table.latest())["counts"] == Audited(AuditCount(found=1, left=1), LATER)
