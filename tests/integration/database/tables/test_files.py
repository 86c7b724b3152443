"""The table of files.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.errors import FileInUse, UnknownCursor
from batchwright.database.records import FileRow
from tests.integration.database.rows import LONG_AGO, MODELS, a_file, after, an_order


async def names(
    database: Database,
    *,
    tenant: str = "t",
    purpose: str | None = None,
    limit: int = 10,
    ascending: bool = False,
    after: str | None = None,
) -> tuple[list[str], bool]:
    rows, more = await database.files.page(
        tenant, purpose=purpose, limit=limit, ascending=ascending, after=after
    )
    return [row.id for row in rows], more


async def test_a_file_is_found_as_it_was_inserted(any_database: Database) -> None:
    row = a_file(filename="Größe '1' %s.jsonl", bytes=2**40, expires_at=datetime.now(UTC) + timedelta(days=1))
    await any_database.files.insert(row)
    assert await any_database.files.get("t", "file-1") == row


async def test_several_files_are_found_at_once_without_expired_ones(any_database: Database) -> None:
    for id, expires_at in (("file-1", None), ("file-2", LONG_AGO), ("file-3", None)):
        await any_database.files.insert(a_file(id=id, expires_at=expires_at))
    found = await any_database.files.get_all("t", ["file-1", "file-2", "file-4"])
    assert found == {"file-1": a_file(id="file-1")}
    assert await any_database.files.get_all("other", ["file-1"]) == {}


async def test_inserting_a_file_again_changes_nothing(any_database: Database) -> None:
    file = a_file()
    assert await any_database.files.insert(file) == file
    assert await any_database.files.insert(a_file(bytes=file.bytes + 1)) == file
    assert await any_database.files.get("t", file.id) == file
    assert await names(any_database) == (["file-1"], False)


async def test_another_tenants_file_is_unknown(any_database: Database) -> None:
    await any_database.files.insert(a_file())
    assert await any_database.files.get("other", "file-1") is None
    assert await any_database.files.delete("other", "file-1") is None
    assert await names(any_database, tenant="other") == ([], False)
    with pytest.raises(UnknownCursor):
        await names(any_database, tenant="other", after="file-1")
    assert await any_database.files.get("t", "file-1") is not None


@pytest.mark.parametrize("file_id", ["", "file-\0", "\ud800", "x' OR '1'='1"])
async def test_unknown_ids_are_not_found(any_database: Database, file_id: str) -> None:
    await any_database.files.insert(a_file())
    assert await any_database.files.get("t", file_id) is None
    assert await any_database.files.delete("t", file_id) is None
    with pytest.raises(UnknownCursor):
        await names(any_database, after=file_id)


async def test_an_expired_file_is_unknown(any_database: Database) -> None:
    await any_database.files.insert(a_file(expires_at=LONG_AGO))
    assert await any_database.files.get("t", "file-1") is None
    assert await any_database.files.delete("t", "file-1") is None
    assert await names(any_database) == ([], False)


async def test_a_live_batch_keeps_its_expired_input_known(any_database: Database) -> None:
    file = a_file(expires_at=LONG_AGO)
    await any_database.files.insert(file)
    await any_database.batches.upsert(an_order(created_at=LONG_AGO - timedelta(seconds=1)))
    assert await any_database.files.get("t", "file-1") == file
    assert await names(any_database) == (["file-1"], False)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.CANCELLED, [], after(1))
    assert await any_database.files.get("t", "file-1") is None


async def test_a_batch_created_later_does_not_make_an_expired_file_known_again(
    any_database: Database,
) -> None:
    await any_database.files.insert(a_file(expires_at=LONG_AGO))
    await any_database.batches.upsert(an_order(created_at=LONG_AGO))
    assert await any_database.files.get("t", "file-1") is None
    assert await names(any_database) == ([], False)


async def test_the_input_of_a_live_batch_cannot_be_deleted(any_database: Database) -> None:
    await any_database.files.insert(a_file())
    await any_database.batches.upsert(an_order(input_file_id="file-1"))
    with pytest.raises(FileInUse) as refused:
        await any_database.files.delete("t", "file-1")
    assert (refused.value.file_id, refused.value.batch_id) == ("file-1", "batch_1")
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1))
    assert await any_database.files.delete("t", "file-1") == a_file()


async def test_another_tenants_batch_does_not_hold_a_file(any_database: Database) -> None:
    await any_database.files.insert(a_file())
    await any_database.batches.upsert(an_order(tenant="other", input_file_id="file-1"))
    assert await any_database.files.delete("t", "file-1") == a_file()


async def test_a_deleted_file_is_unknown_and_deleted_once(any_database: Database) -> None:
    await any_database.files.insert(a_file())
    assert await any_database.files.delete("t", "file-1") == a_file()
    assert await any_database.files.delete("t", "file-1") is None
    assert await any_database.files.get("t", "file-1") is None


@pytest.mark.parametrize("ascending", [True, False])
async def test_pages_follow_each_other_without_gap_or_overlap(
    any_database: Database, ascending: bool
) -> None:
    ids = [f"file-{number}" for number in range(7)]
    for number, id in enumerate(ids):
        await any_database.files.insert(a_file(id, created_at=after(number // 2)))
    seen: list[str] = []
    more, last = True, None
    while more:
        page, more = await names(any_database, limit=3, ascending=ascending, after=last)
        seen, last = seen + page, page[-1]
    assert seen == (ids if ascending else ids[::-1])


async def test_a_list_of_one_purpose_leaves_the_others_out(any_database: Database) -> None:
    await any_database.files.insert(a_file("file-1"))
    await any_database.files.insert(a_file("file-2", purpose="batch_output", created_at=after(1)))
    await any_database.files.insert(a_file("file-3", created_at=after(2)))
    assert await names(any_database, purpose="batch") == (["file-3", "file-1"], False)
    assert await names(any_database, purpose="batch", limit=1) == (["file-3"], True)
    assert await names(any_database, purpose="batch", after="file-2") == (["file-1"], False)


async def test_a_full_last_page_is_marked_as_the_last(any_database: Database) -> None:
    rows: list[FileRow] = [a_file("file-1"), a_file("file-2")]
    for row in rows:
        await any_database.files.insert(row)
    assert await names(any_database, limit=2) == (["file-2", "file-1"], False)
    assert await names(any_database, after="file-1") == ([], False)


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing"])
async def test_an_input_cannot_be_deleted_or_removed_before_its_batch_has_ended(
    any_database: Database, status: str
) -> None:
    await any_database.files.insert(a_file())
    await any_database.batches.upsert(an_order(input_file_id="file-1"))
    if status != "validating":
        await any_database.batches.start("t", "batch_1", total=9, models=MODELS, at=after(1))
    if status == "finalizing":
        assert await any_database.batches.start_finalizing("t", "batch_1", after(2))
    with pytest.raises(FileInUse):
        await any_database.files.delete("t", "file-1")
    assert not await any_database.retention.remove_file(a_file())
