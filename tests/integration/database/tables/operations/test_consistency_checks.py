"""The table with the differences that the latest consistency check of each kind found."""

from datetime import UTC, datetime, timedelta

from batchwright.activities.consistency.report import DifferenceKind
from batchwright.contracts.temporal_payloads.consistency import DifferenceCount
from batchwright.database.database import Database
from batchwright.database.tables.operations.consistency_checks import RecordedConsistencyCheck

START = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
LATER = START + timedelta(hours=1)


async def test_before_the_first_consistency_check_every_kind_has_no_findings(any_database: Database) -> None:
    found = await any_database.consistency_checks.latest()
    assert found.keys() == {kind.value for kind in DifferenceKind}
    assert all(checked.counted == DifferenceCount() for checked in found.values())


async def test_a_consistency_check_replaces_the_one_before(any_database: Database) -> None:
    table = any_database.consistency_checks
    await table.record(
        {"counts": DifferenceCount(found=3, left=2), "run_open": DifferenceCount(found=1, left=1)}, START
    )
    await table.record({"counts": DifferenceCount(found=1, left=0), "run_open": DifferenceCount()}, LATER)
    found = await table.latest()
    assert found["counts"] == RecordedConsistencyCheck(DifferenceCount(found=1, left=0), LATER)
    assert found["run_open"] == RecordedConsistencyCheck(DifferenceCount(), LATER)


async def test_a_consistency_check_that_was_overtaken_changes_nothing(any_database: Database) -> None:
    table = any_database.consistency_checks
    await table.record({"counts": DifferenceCount(found=1, left=1)}, LATER)
    await table.record({"counts": DifferenceCount(found=9, left=9)}, START)
    assert (await table.latest())["counts"] == RecordedConsistencyCheck(
        DifferenceCount(found=1, left=1), LATER
    )
