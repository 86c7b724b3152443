"""Turns of retention over tables and a storage in memory."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities.retain import mark
from batchwright.contracts.errors import Failure
from batchwright.contracts.openai import BatchStatus
from batchwright.contracts.retention import Kind
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import FileRow
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.storage.base import StorageError, StorageUnavailable
from tests.activities.retained import Runs
from tests.fakes.database import MemoryDatabase
from tests.fakes.storage import MemoryStorage
from tests.integration.rows import an_order, an_outcome, told

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=3)
DAY = timedelta(days=1)


class StubbornStorage(MemoryStorage):
    """`stuck` are keys that cannot be deleted; before the object in `killed` is, the process dies."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.deleted: list[str] = []

    async def delete(self, key: str) -> None:
        if key in self.stuck:
            raise StorageError(f"{key} is a symbolic link.")
        self.deleted.append(key)
        await super().delete(key)


class House:
    def __init__(self) -> None:
        self.database, self.storage = MemoryDatabase(), StubbornStorage()
        self.retention = Runs(self.database, self.storage)

    async def file(self, id: str, tenant: str = "t", **changes: object) -> FileRow:
        key = keys.upload_key(tenant, id, "n")
        row = FileRow(
            id=id, tenant=tenant, purpose="batch", filename="x", bytes=4, created_at=OLD, storage_key=key
        ).model_copy(update=changes)
        await self.database.files.insert(row)
        self.write(row.storage_key)
        return row

    def write(self, key: str, at: datetime = OLD, data: bytes = b"data") -> str:
        self.storage.objects[key], self.storage.written[key] = data, at
        return key

    async def batch(self, id: str, file_id: str = "file-in", status: BatchStatus | None = None) -> None:
        await self.database.batches.upsert(an_order(id, input_file_id=file_id, created_at=OLD))
        if status is not None:
            await self.database.batches.end("t", id, status, [], OLD)

    @property
    def objects(self) -> set[str]:
        return set(self.storage.objects) - {keys.DATABASE_MARK}

    def counted(self, name: str, kind: Kind) -> float | None:
        return self.retention.metrics.registry.get_sample_value(
            f"batchwright_retention_{name}_total", {"kind": kind}
        )


@pytest.fixture
def house() -> House:
    return House()


async def test_an_expired_file_goes_with_its_object_after_the_grace(house: House) -> None:
    gone = await house.file("file-1", expires_at=NOW - timedelta(minutes=61))
    kept = await house.file("file-2", expires_at=NOW - timedelta(minutes=59))
    for_ever = await house.file("file-3")
    result = await house.retention.run(Kind.FILES, NOW)
    assert (result.count, result.bytes, result.failures) == (1, 4, 0)
    assert house.objects == {kept.storage_key, for_ever.storage_key}
    assert ("t", gone.id) not in house.database.rows.files
    assert house.counted("deleted", Kind.FILES) == 1
    assert house.counted("deleted_bytes", Kind.FILES) == 4


async def test_an_input_stays_until_its_batch_has_ended_and_the_grace_is_over(house: House) -> None:
    await house.file("file-in", expires_at=OLD)
    await house.batch("batch_1")
    assert (await house.retention.run(Kind.FILES, NOW)).count == 0
    await house.database.batches.end("t", "batch_1", BatchStatus.FAILED, [], NOW - timedelta(minutes=30))
    assert (await house.retention.run(Kind.FILES, NOW)).count == 0
    assert (await house.retention.run(Kind.FILES, NOW + DAY)).count == 1


async def test_a_death_between_object_and_row_is_made_good_by_the_next_turn(house: House) -> None:
    row = await house.file("file-1", expires_at=OLD)
    del house.storage.objects[row.storage_key]
    assert await house.database.files.get("t", "file-1") is None
    assert (await house.retention.run(Kind.FILES, NOW)).count == 1
    assert house.database.rows.files == {}


async def test_objects_go_before_the_rows_that_lead_to_them(house: House) -> None:
    await house.file("file-1", expires_at=OLD)
    house.storage.failing = StorageUnavailable("no disk")
    with pytest.raises(ApplicationError) as caught:
        await house.retention.run(Kind.FILES, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)
    assert ("t", "file-1") in house.database.rows.files
    assert house.counted("failures", Kind.FILES) == 1


async def test_one_that_cannot_be_deleted_holds_up_no_other_and_is_no_success(house: House) -> None:
    stuck = await house.file("file-1", expires_at=OLD)
    await house.file("file-2", expires_at=OLD + timedelta(hours=1))
    house.storage.stuck = {stuck.storage_key}
    result = await house.retention.run(Kind.FILES, NOW)
    assert (result.count, result.failures) == (1, 1)
    assert house.objects == {stuck.storage_key}
    assert Kind.FILES not in house.database.rows.successes
    house.storage.stuck = set()
    await house.retention.run(Kind.FILES, NOW)
    assert Kind.FILES in house.database.rows.successes


@pytest.mark.parametrize("seconds", [0, 60])
async def test_turns_are_bounded_by_time_and_come_to_the_same(seconds: float) -> None:
    house = House()
    house.retention = Runs(house.database, house.storage, turn_seconds=seconds)
    for number in range(5):
        await house.file(f"file-{number}", expires_at=OLD)
    assert (await house.retention.run(Kind.FILES, NOW)).count == 5
    assert house.retention.turns == (1 if seconds else 6)


@pytest.mark.parametrize("seconds", [0, 60])
async def test_the_log_has_the_sum_of_all_turns(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house = House()
    house.retention = Runs(house.database, house.storage, turn_seconds=seconds)
    files = [await house.file(f"file-{number}", expires_at=OLD) for number in range(5)]
    house.storage.stuck = {files[2].storage_key}
    await house.retention.run(Kind.FILES, NOW)
    [done] = [vars(record) for record in caplog.records if record.message == "retention done"]
    assert (done["count"], done["bytes"], done["failures"]) == (4, sum(file.bytes for file in files[1:]), 1)
    assert Kind.FILES not in house.database.rows.successes


async def test_what_an_ended_batch_left_goes_a_day_after_its_end(house: House) -> None:
    await house.batch("batch_1", status=BatchStatus.FAILED)
    await house.batch("batch_2")
    root = keys.ingest_prefix("t", "batch_1", "n")
    house.write(keys.plan(root, "m"))
    house.write(keys.segment(keys.slice_results("t", "batch_1", "m", 0), 0, 1, "n", 0))
    live = house.write(keys.plan(keys.ingest_prefix("t", "batch_2", "n"), "m"))
    house.database.rows.progress["t", "batch_1", "a", 0] = told()
    assert (await house.retention.run(Kind.BATCHES, OLD + timedelta(hours=23))).count == 0
    result = await house.retention.run(Kind.BATCHES, NOW)
    assert (result.count, result.bytes) == (2, 8)
    assert house.objects == {live}
    assert house.database.rows.progress == {}
    assert (await house.retention.run(Kind.BATCHES, NOW)).count == 0


async def test_files_of_attempts_that_did_not_win_go_and_the_winners_stay(house: House) -> None:
    id = derived_file_id("batch_1", "output")
    await house.batch("batch_1")
    own = await house.file(id, purpose="batch_output", expires_at=NOW + DAY)
    await house.database.batches.finish("t", "batch_1", an_outcome(output=own, error=None), OLD)
    house.write(keys.output_key("t", id, "late"))
    assert (await house.retention.run(Kind.BATCHES, NOW)).count == 1
    assert house.objects == {own.storage_key}


async def test_descriptions_go_after_90_days_once_nothing_else_is_left(house: House) -> None:
    await house.batch("batch_1", status=BatchStatus.CANCELLED)
    later = OLD + timedelta(days=91)
    assert (await house.retention.run(Kind.METADATA, later)).count == 0
    await house.retention.run(Kind.BATCHES, NOW)
    assert (await house.retention.run(Kind.METADATA, OLD + timedelta(days=89))).count == 0
    assert (await house.retention.run(Kind.METADATA, later)).count == 1
    assert house.database.rows.batches == {}


async def test_objects_that_no_row_names_go_once_they_are_old(house: House) -> None:
    kept = {(await house.file("file-1")).storage_key}
    await house.batch("batch_live")
    await house.batch("batch_done", status=BatchStatus.EXPIRED)
    kept.add(house.write(keys.output_key("t", derived_file_id("batch_live", "error"), "n")))
    kept.add(house.write(keys.plan(keys.ingest_prefix("t", "batch_live", "n"), "m")))
    kept.add(house.write(keys.upload_key("t", "file-new", "n"), at=NOW - timedelta(hours=47)))
    kept.add(house.write(keys.upload_key("stranger", "file-9", "n")))
    kept.add(house.write("somebody/elses"))
    house.write(keys.upload_key("t", "file-1", "other"))
    house.write(keys.upload_key("t", "file-2", "n"))
    house.write(keys.part_key("t", "upload_1", "part_1"))
    house.write(keys.plan(keys.ingest_prefix("t", "batch_done", "n"), "m"))
    house.write(keys.plan(keys.ingest_prefix("t", "batch_unknown", "n"), "m"))
    result = await house.retention.run(Kind.ORPHANS, NOW)
    assert (result.count, result.bytes) == (5, 20)
    assert house.objects == kept


async def test_every_tenant_has_its_turn(house: House) -> None:
    for tenant in ("a", "b", "c"):
        await house.file("file-1", tenant)
        house.write(keys.upload_key(tenant, "file-2", "n"))
    assert (await house.retention.run(Kind.ORPHANS, NOW)).count == 3
    assert house.retention.turns > 3


async def test_a_file_without_its_object_is_forgotten_unless_it_is_new(house: House) -> None:
    await house.file("file-1")
    lost, new = await house.file("file-2"), await house.file("file-3", created_at=NOW)
    for row in (lost, new):
        del house.storage.objects[row.storage_key]
    assert (await house.retention.run(Kind.LOST, NOW)).count == 1
    assert {id for _, id in house.database.rows.files} == {"file-1", "file-3"}


async def test_a_lost_input_of_a_live_batch_keeps_its_row(house: House) -> None:
    row = await house.file("file-in")
    await house.batch("batch_1")
    del house.storage.objects[row.storage_key]
    assert (await house.retention.run(Kind.LOST, NOW)).count == 0


@pytest.mark.parametrize("kind", [Kind.ORPHANS, Kind.LOST])
async def test_rows_and_objects_of_different_owners_are_not_compared(house: House, kind: Kind) -> None:
    row = await house.file("file-1")
    await house.retention.run(kind, NOW)
    house.storage.objects[keys.DATABASE_MARK] = b"another"
    house.write(keys.upload_key("t", "file-2", "n"))
    del house.storage.objects[row.storage_key]
    before = dict(house.storage.objects)
    with pytest.raises(ApplicationError, match="belongs to the database 'another'") as caught:
        await house.retention.run(kind, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.FOREIGN_STORAGE, True)
    assert (house.storage.objects, len(house.database.rows.files)) == (before, 1)


async def test_an_empty_storage_is_not_taken_for_ours_until_somebody_says_so(house: House) -> None:
    await house.file("file-1")
    await house.retention.run(Kind.LOST, NOW)
    house.storage.objects.clear()
    with pytest.raises(ApplicationError, match="has lost 'database-mark'"):
        await house.retention.run(Kind.LOST, NOW)
    assert len(house.database.rows.files) == 1
    await mark.adopt(house.database, house.storage, NOW)
    assert (await house.retention.run(Kind.LOST, NOW)).count == 1


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_dry_run_counts_and_changes_nothing(house: House, kind: Kind) -> None:
    await house.file("file-1", expires_at=OLD)
    await house.batch("batch_1", status=BatchStatus.FAILED)
    house.write(keys.plan(keys.ingest_prefix("t", "batch_1", "n"), "m"))
    house.write(keys.upload_key("t", "file-2", "n"))
    lost = await house.file("file-3")
    del house.storage.objects[lost.storage_key]
    objects, files = dict(house.storage.objects), dict(house.database.rows.files)
    result = await house.retention.run(kind, NOW, dry_run=True)
    assert (house.storage.objects, house.database.rows.files) == (objects, files)
    expected = {Kind.FILES: 1, Kind.BATCHES: 1, Kind.ORPHANS: 2, Kind.LOST: 1}
    assert result.count == expected.get(kind, 0)
    assert house.counted("deleted", kind) is None
    assert house.database.rows.successes == {}


async def test_database_trouble_is_retried(house: House) -> None:
    house.database.rows.failing = DatabaseUnavailable("no server")
    with pytest.raises(ApplicationError) as caught:
        await house.retention.run(Kind.FILES, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)
