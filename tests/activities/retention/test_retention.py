"""The retention activity, which deletes expired data, with database tables and a storage in memory."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.retention import storage_mark
from batchwright.contracts.api_objects.audit_log import AuditAction, AuditTargetType
from batchwright.contracts.api_objects.webhook_events import EventType
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import FileRow
from batchwright.database.tables.operations.audit_log import AuditActor, AuditEntry, AuditTarget
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageError, StorageUnavailable
from tests.activities.retention.runner import RetentionRunner
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.storage import MemoryStorage
from tests.integration.database.rows import an_order, an_outcome, slice_progress

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=3)
DAY = timedelta(days=1)


class StubbornStorage(MemoryStorage):
    """A storage that cannot delete the keys in `stuck`. `deleted` has the keys of all other deletions."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.deleted: list[str] = []

    async def delete(self, key: str) -> None:
        if key in self.stuck:
            raise StorageError(f"{key} is a symbolic link.")
        self.deleted.append(key)
        await super().delete(key)


class RetentionFixture:
    def __init__(self) -> None:
        self.database, self.storage = MemoryDatabase(), StubbornStorage()
        self.retention = RetentionRunner(self.database, self.storage)

    async def file(self, id: str, tenant: str = "t", **changes: object) -> FileRow:
        key = object_keys.upload_key(tenant, id, "n")
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
            await self.database.batch_ends.end_without_files("t", id, status, [], OLD)

    @property
    def objects(self) -> set[str]:
        return set(self.storage.objects) - {object_keys.DATABASE_MARK}

    def counted(self, name: str, kind: RetentionKind) -> float | None:
        return self.retention.metrics.registry.get_sample_value(
            f"batchwright_retention_{name}_total", {"kind": kind}
        )


@pytest.fixture
def fixture() -> RetentionFixture:
    return RetentionFixture()


async def test_an_expired_file_is_deleted_with_its_object_after_the_grace(fixture: RetentionFixture) -> None:
    gone = await fixture.file("file-1", expires_at=NOW - timedelta(minutes=61))
    kept = await fixture.file("file-2", expires_at=NOW - timedelta(minutes=59))
    for_ever = await fixture.file("file-3")
    result = await fixture.retention.run(RetentionKind.FILES, NOW)
    assert (result.count, result.bytes, result.failures) == (1, 4, 0)
    assert fixture.objects == {kept.storage_key, for_ever.storage_key}
    assert ("t", gone.id) not in fixture.database.rows.files
    assert fixture.counted("deleted", RetentionKind.FILES) == 1
    assert fixture.counted("deleted_bytes", RetentionKind.FILES) == 4


async def test_an_input_stays_until_its_batch_has_ended_and_the_grace_is_over(
    fixture: RetentionFixture,
) -> None:
    await fixture.file("file-in", expires_at=OLD)
    await fixture.batch("batch_1")
    assert (await fixture.retention.run(RetentionKind.FILES, NOW)).count == 0
    await fixture.database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.FAILED, [], NOW - timedelta(minutes=30)
    )
    assert (await fixture.retention.run(RetentionKind.FILES, NOW)).count == 0
    assert (await fixture.retention.run(RetentionKind.FILES, NOW + DAY)).count == 1


async def test_a_deletion_interrupted_between_object_and_row_is_finished_by_the_next_turn(
    fixture: RetentionFixture,
) -> None:
    row = await fixture.file("file-1", expires_at=OLD)
    del fixture.storage.objects[row.storage_key]
    assert await fixture.database.files.get("t", "file-1") is None
    assert (await fixture.retention.run(RetentionKind.FILES, NOW)).count == 1
    assert fixture.database.rows.files == {}


async def test_objects_are_deleted_before_their_rows(fixture: RetentionFixture) -> None:
    await fixture.file("file-1", expires_at=OLD)
    fixture.storage.failing = StorageUnavailable("no disk")
    with pytest.raises(ApplicationError) as caught:
        await fixture.retention.run(RetentionKind.FILES, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)
    assert ("t", "file-1") in fixture.database.rows.files
    assert fixture.counted("failures", RetentionKind.FILES) == 1


async def test_an_object_that_cannot_be_deleted_delays_no_other_and_is_reported_as_a_failure(
    fixture: RetentionFixture,
) -> None:
    stuck = await fixture.file("file-1", expires_at=OLD)
    await fixture.file("file-2", expires_at=OLD + timedelta(hours=1))
    fixture.storage.stuck = {stuck.storage_key}
    result = await fixture.retention.run(RetentionKind.FILES, NOW)
    assert (result.count, result.failures) == (1, 1)
    assert fixture.objects == {stuck.storage_key}
    assert RetentionKind.FILES not in fixture.database.rows.successes
    fixture.storage.stuck = set()
    await fixture.retention.run(RetentionKind.FILES, NOW)
    assert RetentionKind.FILES in fixture.database.rows.successes


@pytest.mark.parametrize("seconds", [0, 60])
async def test_turns_are_limited_in_time_and_give_the_same_result(seconds: float) -> None:
    fixture = RetentionFixture()
    fixture.retention = RetentionRunner(fixture.database, fixture.storage, turn_seconds=seconds)
    for number in range(5):
        await fixture.file(f"file-{number}", expires_at=OLD)
    assert (await fixture.retention.run(RetentionKind.FILES, NOW)).count == 5
    assert fixture.retention.turns == (1 if seconds else 6)


@pytest.mark.parametrize("seconds", [0, 60])
async def test_the_log_has_the_sum_of_all_turns(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fixture = RetentionFixture()
    fixture.retention = RetentionRunner(fixture.database, fixture.storage, turn_seconds=seconds)
    files = [await fixture.file(f"file-{number}", expires_at=OLD) for number in range(5)]
    fixture.storage.stuck = {files[2].storage_key}
    await fixture.retention.run(RetentionKind.FILES, NOW)
    [done] = [vars(record) for record in caplog.records if record.message == "retention kind done"]
    assert (done["count"], done["bytes"], done["failures"]) == (4, sum(file.bytes for file in files[1:]), 1)
    assert RetentionKind.FILES not in fixture.database.rows.successes


async def test_leftovers_of_an_ended_batch_are_deleted_a_day_after_its_end(fixture: RetentionFixture) -> None:
    await fixture.batch("batch_1", status=BatchStatus.FAILED)
    await fixture.batch("batch_2")
    root = object_keys.ingest_prefix("t", "batch_1", "n")
    fixture.write(object_keys.plan(root, "m"))
    fixture.write(object_keys.segment(object_keys.slice_results("t", "batch_1", "m", 0), 0, 1, "n", 0))
    live = fixture.write(object_keys.plan(object_keys.ingest_prefix("t", "batch_2", "n"), "m"))
    fixture.database.rows.progress["t", "batch_1", "a", 0] = slice_progress()
    assert (await fixture.retention.run(RetentionKind.BATCHES, OLD + timedelta(hours=23))).count == 0
    result = await fixture.retention.run(RetentionKind.BATCHES, NOW)
    assert (result.count, result.bytes) == (2, 8)
    assert fixture.objects == {live}
    assert fixture.database.rows.progress == {}
    assert (await fixture.retention.run(RetentionKind.BATCHES, NOW)).count == 0


async def test_files_of_losing_attempts_are_deleted_and_those_of_the_winner_stay(
    fixture: RetentionFixture,
) -> None:
    id = derived_file_id("batch_1", "output")
    await fixture.batch("batch_1")
    own = await fixture.file(id, purpose="batch_output", expires_at=NOW + DAY)
    await fixture.database.batch_ends.finish("t", "batch_1", an_outcome(output=own, error=None), OLD)
    fixture.write(object_keys.output_key("t", id, "late"))
    assert (await fixture.retention.run(RetentionKind.BATCHES, NOW)).count == 1
    assert fixture.objects == {own.storage_key}


async def test_batch_rows_are_deleted_after_90_days_once_nothing_else_is_left(
    fixture: RetentionFixture,
) -> None:
    await fixture.batch("batch_1", status=BatchStatus.CANCELLED)
    later = OLD + timedelta(days=91)
    assert (await fixture.retention.run(RetentionKind.METADATA, later)).count == 0
    await fixture.retention.run(RetentionKind.BATCHES, NOW)
    assert (await fixture.retention.run(RetentionKind.METADATA, OLD + timedelta(days=89))).count == 0
    assert (await fixture.retention.run(RetentionKind.METADATA, later)).count == 1
    assert fixture.database.rows.batches == {}


async def test_the_record_of_a_deleted_batch_is_kept_as_long_as_rows_of_batches(
    fixture: RetentionFixture,
) -> None:
    await fixture.batch("batch_1", status=BatchStatus.EXPIRED)
    deletions = fixture.database.batch_deletions
    assert await deletions.remove("t", "batch_1", NOW)
    later = NOW + timedelta(days=90)
    await fixture.retention.run(RetentionKind.METADATA, later - timedelta(seconds=1))
    await fixture.retention.run(RetentionKind.METADATA, later, dry_run=True)
    assert await deletions.is_deleted("t", "batch_1")
    await fixture.retention.run(RetentionKind.METADATA, later)
    assert not await deletions.is_deleted("t", "batch_1")


async def test_old_objects_without_a_row_are_deleted(fixture: RetentionFixture) -> None:
    kept = {(await fixture.file("file-1")).storage_key}
    await fixture.batch("batch_live")
    await fixture.batch("batch_done", status=BatchStatus.EXPIRED)
    kept.add(fixture.write(object_keys.output_key("t", derived_file_id("batch_live", "error"), "n")))
    kept.add(fixture.write(object_keys.plan(object_keys.ingest_prefix("t", "batch_live", "n"), "m")))
    kept.add(fixture.write(object_keys.upload_key("t", "file-new", "n"), at=NOW - timedelta(hours=47)))
    kept.add(fixture.write(object_keys.upload_key("stranger", "file-9", "n")))
    kept.add(fixture.write("somebody/elses"))
    fixture.write(object_keys.upload_key("t", "file-1", "other"))
    fixture.write(object_keys.upload_key("t", "file-2", "n"))
    fixture.write(object_keys.part_key("t", "upload_1", "part_1"))
    fixture.write(object_keys.plan(object_keys.ingest_prefix("t", "batch_done", "n"), "m"))
    fixture.write(object_keys.plan(object_keys.ingest_prefix("t", "batch_unknown", "n"), "m"))
    result = await fixture.retention.run(RetentionKind.ORPHANS, NOW)
    assert (result.count, result.bytes) == (5, 20)
    assert fixture.objects == kept


async def test_every_tenant_has_its_turn(fixture: RetentionFixture) -> None:
    for tenant in ("a", "b", "c"):
        await fixture.file("file-1", tenant)
        fixture.write(object_keys.upload_key(tenant, "file-2", "n"))
    assert (await fixture.retention.run(RetentionKind.ORPHANS, NOW)).count == 3
    assert fixture.retention.turns > 3


async def test_the_row_of_a_file_without_its_object_is_deleted_unless_it_is_new(
    fixture: RetentionFixture,
) -> None:
    await fixture.file("file-1")
    lost, new = await fixture.file("file-2"), await fixture.file("file-3", created_at=NOW)
    for row in (lost, new):
        del fixture.storage.objects[row.storage_key]
    assert (await fixture.retention.run(RetentionKind.LOST, NOW)).count == 1
    assert {id for _, id in fixture.database.rows.files} == {"file-1", "file-3"}


async def test_a_lost_input_of_a_live_batch_keeps_its_row(fixture: RetentionFixture) -> None:
    row = await fixture.file("file-in")
    await fixture.batch("batch_1")
    del fixture.storage.objects[row.storage_key]
    assert (await fixture.retention.run(RetentionKind.LOST, NOW)).count == 0


@pytest.mark.parametrize("kind", [RetentionKind.ORPHANS, RetentionKind.LOST])
async def test_rows_and_objects_of_different_owners_are_not_compared(
    fixture: RetentionFixture, kind: RetentionKind
) -> None:
    row = await fixture.file("file-1")
    await fixture.retention.run(kind, NOW)
    fixture.storage.objects[object_keys.DATABASE_MARK] = b"another"
    fixture.write(object_keys.upload_key("t", "file-2", "n"))
    del fixture.storage.objects[row.storage_key]
    before = dict(fixture.storage.objects)
    with pytest.raises(ApplicationError, match="belongs to the database 'another'") as caught:
        await fixture.retention.run(kind, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.FOREIGN_STORAGE, True)
    assert (fixture.storage.objects, len(fixture.database.rows.files)) == (before, 1)


async def test_an_empty_storage_is_not_used_until_an_operator_adopts_it(
    fixture: RetentionFixture,
) -> None:
    await fixture.file("file-1")
    await fixture.retention.run(RetentionKind.LOST, NOW)
    fixture.storage.objects.clear()
    with pytest.raises(ApplicationError, match="has lost 'database-mark'"):
        await fixture.retention.run(RetentionKind.LOST, NOW)
    assert len(fixture.database.rows.files) == 1
    await storage_mark.adopt_storage(fixture.database, fixture.storage, NOW)
    assert (await fixture.retention.run(RetentionKind.LOST, NOW)).count == 1


@pytest.mark.parametrize("kind", list(RetentionKind))
async def test_a_dry_run_counts_and_changes_nothing(fixture: RetentionFixture, kind: RetentionKind) -> None:
    await fixture.file("file-1", expires_at=OLD)
    await fixture.batch("batch_1", status=BatchStatus.FAILED)
    fixture.write(object_keys.plan(object_keys.ingest_prefix("t", "batch_1", "n"), "m"))
    fixture.write(object_keys.upload_key("t", "file-2", "n"))
    lost = await fixture.file("file-3")
    del fixture.storage.objects[lost.storage_key]
    objects, files = dict(fixture.storage.objects), dict(fixture.database.rows.files)
    result = await fixture.retention.run(kind, NOW, dry_run=True)
    assert (fixture.storage.objects, fixture.database.rows.files) == (objects, files)
    expected = {
        RetentionKind.FILES: 1,
        RetentionKind.BATCHES: 1,
        RetentionKind.ORPHANS: 2,
        RetentionKind.LOST: 1,
    }
    assert result.count == expected.get(kind, 0)
    assert fixture.counted("deleted", kind) is None
    assert fixture.database.rows.successes == {}


async def test_database_trouble_is_retried(fixture: RetentionFixture) -> None:
    fixture.database.rows.failing = DatabaseUnavailable("no server")
    with pytest.raises(ApplicationError) as caught:
        await fixture.retention.run(RetentionKind.FILES, NOW)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)


async def test_old_deliveries_of_webhooks_and_webhooks_of_deleted_batches_are_deleted() -> None:
    """A dry run only counts the deliveries and webhooks. An old delivery is deleted even if it is pending,
    unless it was started again.
    """
    database = MemoryDatabase()
    for batch_id in ("", "batch_gone"):
        endpoint = WebhookEndpoint(
            tenant="t",
            id=f"webhook_{batch_id}",
            batch_id=batch_id,
            url="https://a.example/",
            events=[EventType.BATCH_FAILED],
            secret=b"",
            created_at=NOW - timedelta(days=31),
        )
        database.rows.webhook_endpoints["t", endpoint.id] = endpoint
    for number, (status, age) in enumerate(
        [("delivered", 31), ("pending", 31), ("failed", 29), ("pending", 31)]
    ):
        fields: dict[str, object] = {
            "status": status,
            "created_at": NOW - timedelta(days=age),
            "id": f"wh_{number}",
        }
        database.rows.webhook_deliveries["t", f"wh_{number}"] = WebhookDelivery.model_validate(
            {
                "tenant": "t",
                "endpoint_id": "webhook_",
                "batch_id": "batch_1",
                "event_id": f"evt_{number}",
                "type": "batch.failed",
                "occurred_at": NOW,
                **fields,
            }
        )
    replayed = database.rows.webhook_deliveries["t", "wh_3"]
    recently = {"started_at": NOW - timedelta(days=1), "started": True}
    database.rows.webhook_deliveries["t", "wh_3"] = replayed.model_copy(update=recently)
    retention = RetentionRunner(database, MemoryStorage())
    assert (await retention.run(RetentionKind.WEBHOOKS, NOW, dry_run=True)).count == 3
    assert (await retention.run(RetentionKind.WEBHOOKS, NOW)).count == 3
    assert sorted(id for _, id in database.rows.webhook_deliveries) == ["wh_2", "wh_3"]
    assert list(database.rows.webhook_endpoints) == [("t", "webhook_")]


async def test_entries_of_the_audit_log_are_deleted_after_the_days_of_the_setting() -> None:
    database = MemoryDatabase()
    for days in (399, 401):
        entry = AuditEntry(
            created_at=NOW - timedelta(days=days),
            actor=AuditActor(source="cli", user="root"),
            action=AuditAction.TENANT_DISABLE,
            target=AuditTarget(type=AuditTargetType.TENANT, id="blue", tenant="blue"),
        )
        await database.audit_log.begin(entry)
    retention = RetentionRunner(database, MemoryStorage())
    assert (await retention.run(RetentionKind.AUDIT_LOG, NOW, dry_run=True)).count == 1
    assert (await retention.run(RetentionKind.AUDIT_LOG, NOW)).count == 1
    [kept] = database.rows.audit_log.values()
    assert kept.entry.created_at == NOW - timedelta(days=399)
