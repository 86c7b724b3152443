"""Uploads and idempotency keys.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime

import pytest

from batchwright.contracts.terms import Quota
from batchwright.database.database import Database
from batchwright.database.errors import QuotaExhausted, UnknownUpload, UploadClosed, UploadFull
from batchwright.database.records import IdempotencyClaim, PartRow
from batchwright.database.tables.tenants.admissions import Admission
from tests.integration.database.admission_rows import admit_batch, admit_bytes
from tests.integration.database.rows import START, a_file, after, an_upload

NEVER = datetime(2999, 1, 1, tzinfo=UTC)


def a_part(id: str = "part_1", bytes: int = 5) -> PartRow:
    return PartRow(
        id=id, tenant="t", upload_id="upload_1", bytes=bytes, storage_key=f"x/{id}", created_at=START
    )


def a_claim(made: str = "{}", seconds: float = 0, tenant: str = "t") -> IdempotencyClaim:
    return IdempotencyClaim(
        tenant=tenant,
        operation="batches",
        key="k",
        fingerprint="f",
        made=made,
        created_at=after(seconds),
    )


async def add(database: Database, *parts: PartRow, at: float = 0, most: int = 100) -> None:
    for part in parts:
        await database.uploads.add_part(part, at=after(at), max_bytes=most, max_parts=3)


async def test_an_upload_is_found_as_it_was_inserted_first(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    await any_database.uploads.insert(an_upload(bytes=1))
    assert await any_database.uploads.get("t", "upload_1") == an_upload()
    assert await any_database.uploads.get("other", "upload_1") is None
    assert await any_database.uploads.get("t", "upload_\0") is None


async def test_parts_are_found_by_their_ids_and_their_upload(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    await any_database.uploads.insert(an_upload(tenant="other"))
    await add(any_database, a_part(), a_part("part_2", bytes=0), a_part("part_2", bytes=0))
    found = await any_database.uploads.parts("t", "upload_1", ["part_2", "x", "part_1", "\0"])
    assert found == {"part_1": a_part(), "part_2": a_part("part_2", bytes=0)}
    assert await any_database.uploads.parts("other", "upload_1", ["part_1"]) == {}


async def test_parts_are_bounded_in_bytes_and_number(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    await add(any_database, a_part(bytes=60))
    with pytest.raises(UploadFull):
        await add(any_database, a_part("part_2", bytes=41))
    await add(any_database, a_part("part_2", bytes=40), a_part("part_3", bytes=0))
    with pytest.raises(UploadFull):
        await add(any_database, a_part("part_4", bytes=0))


async def test_parts_that_arrive_together_do_not_exceed_the_storage_quota(any_database: Database) -> None:
    uploads = any_database.uploads
    for number in range(4):
        await uploads.insert(an_upload(f"upload_{number}", bytes=10, expires_at=NEVER))

    async def add_part(number: int) -> bool:
        part = a_part(f"part_{number}", bytes=30).model_copy(update={"upload_id": f"upload_{number}"})
        try:
            await uploads.add_part(part, at=START, max_bytes=999, max_parts=9, storage_limit=100)
        except QuotaExhausted:
            return False
        return True

    # Each upload of 10 announced bytes may grow to 30 bytes while all of them have at most 100.
    assert sum(await asyncio.gather(*(add_part(number) for number in range(4)))) == 3
    assert await any_database.quotas.stored("t") == 3 * 30 + 10


async def test_a_part_within_the_announced_bytes_needs_no_room_in_the_storage_quota(
    any_database: Database,
) -> None:
    uploads, full = any_database.uploads, 10
    await uploads.insert(an_upload(bytes=10, expires_at=NEVER))
    await any_database.files.insert(a_file(bytes=50))  # the tenant's limit was lowered since
    await uploads.add_part(a_part(bytes=10), at=START, max_bytes=99, max_parts=9, storage_limit=full)
    assert list(await uploads.parts("t", "upload_1", ["part_1"])) == ["part_1"]
    with pytest.raises(QuotaExhausted):
        await uploads.add_part(
            a_part("part_2", bytes=1), at=START, max_bytes=99, max_parts=9, storage_limit=full
        )


async def test_a_part_that_is_repeated_counts_once(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload(bytes=10, expires_at=NEVER))
    for _ in range(2):
        await any_database.uploads.add_part(a_part(bytes=30), at=START, max_bytes=99, max_parts=3)
    assert await any_database.quotas.stored("t") == 30


async def test_an_expired_or_unknown_upload_takes_no_part(any_database: Database) -> None:
    with pytest.raises(UnknownUpload):
        await add(any_database, a_part())
    await any_database.uploads.insert(an_upload())
    with pytest.raises(UploadClosed) as closed:
        await add(any_database, a_part(), at=3600)
    assert closed.value.status == "expired"


async def test_of_two_completions_at_once_one_makes_its_file(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    await add(any_database, a_part())
    rows = await asyncio.gather(
        *(any_database.uploads.complete(an_upload(), a_file(name), "digest") for name in ("file-1", "file-2"))
    )
    assert rows[0] == rows[1]
    assert (rows[0].status, rows[0].completion) == ("completed", "digest")
    files, _ = await any_database.files.page("t", purpose=None, limit=9, ascending=True, after=None)
    assert [file.id for file in files] == [rows[0].file_id]
    assert await any_database.uploads.parts("t", "upload_1", ["part_1"]) == {}
    with pytest.raises(UploadClosed):
        await add(any_database, a_part())


async def test_a_cancelled_upload_stays_cancelled(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    await add(any_database, a_part())
    for _ in range(2):
        row = await any_database.uploads.cancel("t", "upload_1", START)
        assert row is not None
        assert row.status == "cancelled"
    assert (await any_database.uploads.complete(an_upload(), a_file(), "digest")).status == "cancelled"
    assert await any_database.files.get("t", "file-1") is None
    assert await any_database.uploads.parts("t", "upload_1", ["part_1"]) == {}
    assert await any_database.uploads.cancel("other", "upload_1", START) is None


async def test_an_expired_upload_cannot_be_cancelled(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload())
    row = await any_database.uploads.cancel("t", "upload_1", after(3600))
    assert row is not None
    assert row.status_at(after(3600)) == "expired"


async def test_expired_uploads_are_swept_once_and_only_pending_ones_become_expired(
    any_database: Database,
) -> None:
    uploads = any_database.uploads
    await uploads.insert(an_upload())
    await uploads.insert(an_upload("upload_2", "other", expires_at=after(10)))
    await uploads.insert(an_upload("upload_3", expires_at=after(9999)))
    await add(any_database, a_part())
    await uploads.cancel("other", "upload_2", START)
    unswept = await uploads.unswept(after(3600), 9)
    assert [row.id for row in unswept] == ["upload_2", "upload_1"]
    assert [row.id for row in await uploads.unswept(after(3600), 1)] == ["upload_2"]
    for row in unswept:
        await uploads.record_sweep(row, after(3600))
    assert await uploads.unswept(after(3600), 9) == []
    statuses = [await uploads.get("t", "upload_1"), await uploads.get("other", "upload_2")]
    assert [row and row.status for row in statuses] == ["expired", "cancelled"]
    assert await uploads.parts("t", "upload_1", ["part_1"]) == {}


async def test_an_idempotency_key_belongs_to_the_first_request_until_it_is_old(
    any_database: Database,
) -> None:
    claims = any_database.idempotency
    first, second = a_claim(made="1"), a_claim(made="2", seconds=5)
    assert await claims.claim(first, after(-10)) is None
    assert await claims.claim(second, after(-10)) == first
    assert await claims.find("t", "batches", "k", after(-10)) == first
    assert await claims.find("t", "files", "k", after(-10)) is None
    assert await claims.find("other", "batches", "k", after(-10)) is None
    assert await claims.find("t", "batches", "k", START) is None
    assert await claims.claim(second, START) is None
    assert await claims.find("t", "batches", "k", START) == second


async def test_an_idempotency_key_used_concurrently_goes_to_one_request(
    any_database: Database,
) -> None:
    file_ids = [f"file-{i}" for i in range(8)]
    held = await asyncio.gather(
        *(any_database.idempotency.claim(a_claim(made=name), after(-10), a_file(name)) for name in file_ids)
    )
    [winner] = [name for name, claim in zip(file_ids, held, strict=True) if claim is None]
    assert {claim.made for claim in held if claim is not None} == {winner}
    files, _ = await any_database.files.page("t", purpose=None, limit=99, ascending=True, after=None)
    assert [file.id for file in files] == [winner]


async def test_concurrent_requests_with_one_key_take_one_place_of_a_quota(any_database: Database) -> None:
    def claiming(number: int) -> Awaitable[IdempotencyClaim | None]:
        admission = Admission("t", f"batch_{number}", Quota.LIVE_BATCHES, 1, limit=1)
        claim = a_claim(made=f"batch_{number}")
        return any_database.idempotency.claim(claim, after(-10), admissions=[admission])

    held = await asyncio.gather(*(claiming(number) for number in range(8)))
    [winner] = [f"batch_{number}" for number, claim in enumerate(held) if claim is None]
    assert {claim.made for claim in held if claim is not None} == {winner}
    await any_database.admissions.release("t", winner)
    assert await admit_batch(any_database, "batch_other", 1)


async def test_a_key_is_not_stored_if_a_quota_has_no_place(any_database: Database) -> None:
    assert await admit_batch(any_database, "batch_0", 1)
    admission = Admission("t", "batch_1", Quota.LIVE_BATCHES, 1, limit=1)
    with pytest.raises(QuotaExhausted):
        await any_database.idempotency.claim(a_claim(), after(-10), admissions=[admission])
    assert await any_database.idempotency.find("t", "batches", "k", after(-10)) is None


async def test_a_claimed_upload_counts_once_towards_the_storage_quota(any_database: Database) -> None:
    admission = Admission("t", "upload_1", Quota.STORED_BYTES, 60, limit=100)
    upload = an_upload(bytes=60, expires_at=NEVER)
    assert await any_database.idempotency.claim(a_claim(), after(-10), upload, admissions=[admission]) is None
    assert not await admit_bytes(any_database, "file-1", 41, 100)
    assert await any_database.uploads.cancel("t", "upload_1", START) is not None
    assert await admit_bytes(any_database, "file-1", 100, 100)


async def test_a_claim_may_bring_an_upload(any_database: Database) -> None:
    assert await any_database.idempotency.claim(a_claim(), after(-10), an_upload()) is None
    assert await any_database.uploads.get("t", "upload_1") == an_upload()


async def test_old_keys_are_forgotten(any_database: Database) -> None:
    await any_database.idempotency.claim(a_claim(), after(-10))
    await any_database.idempotency.claim(a_claim(seconds=50, tenant="other"), after(-10))
    assert await any_database.retention.remove_idempotency_keys(START, 9) == 1
    assert await any_database.idempotency.find("t", "batches", "k", after(-10)) is None
    assert await any_database.idempotency.find("other", "batches", "k", after(-10)) is not None
