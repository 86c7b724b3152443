"""/v1/uploads: create, parts, complete, cancel, and what is left behind."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from api.objects import PartObject, UploadObject
from batchwright.contracts.retention import Kind
from batchwright.database.errors import DatabaseUnavailable
from tests.activities.retained import Runs
from tests.fakes.api import LINE, House, error_of, keys_of, open_house, read

BODY: dict[str, object] = {
    "filename": "in.jsonl",
    "purpose": "batch",
    "bytes": 3 * len(LINE),
    "mime_type": "application/jsonl",
}


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def created(house: House, **changes: object) -> UploadObject:
    return read(await house.http.post("/v1/uploads", json={**BODY, **changes}), UploadObject)


async def part(house: House, upload: UploadObject, data: bytes = LINE) -> str:
    answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("blob", data)})
    return read(answer, PartObject).id


async def complete(
    house: House, upload: UploadObject, ids: list[str], **more: object
) -> tuple[int, str | None]:
    """Status and the error's code."""
    body = {"part_ids": ids, **more}
    answer = await house.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    return answer.status_code, None if answer.is_success else error_of(answer).code


def expire(house: House, upload: UploadObject) -> None:
    key = ("default", upload.id)
    row = house.database.rows.uploads[key]
    past = datetime.now(UTC) - timedelta(hours=2)
    house.database.rows.uploads[key] = row.model_copy(update={"expires_at": past})


def left(house: House) -> int:
    """How many objects and rows of parts and files there are."""
    rows = house.database.rows
    return len(house.storage.objects) + len(rows.parts) + len(rows.files)


async def test_a_new_upload_has_every_key_of_the_contract(house: House) -> None:
    answer = await house.http.post("/v1/uploads", json=BODY)
    upload = read(answer, UploadObject)
    assert keys_of(answer) == {
        *("id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "file"),
    }
    assert upload.id.startswith("upload_")
    assert (upload.status, upload.file, upload.expires_at - upload.created_at) == ("pending", None, 3600)


async def test_the_order_of_the_ids_is_the_order_of_the_bytes(house: House) -> None:
    pieces = [LINE[:9], LINE[9:], LINE]
    upload = await created(house, bytes=2 * len(LINE))
    ids = await asyncio.gather(*(part(house, upload, piece) for piece in pieces[::-1]))
    md5 = hashlib.md5(LINE * 2).hexdigest()
    done = await house.openai.uploads.complete(upload.id, part_ids=ids[::-1], md5=md5.upper())
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.bytes, done.file.filename, done.file.purpose) == (len(LINE) * 2, "in.jsonl", "batch")
    assert (await house.openai.files.content(done.file.id)).content == LINE * 2
    assert left(house) == 2  # the file's row and object


async def test_the_official_client_splits_a_file_by_itself(house: House) -> None:
    content = LINE * 1000
    done = await house.openai.uploads.upload_file_chunked(
        file=content,
        filename="a.jsonl",
        bytes=len(content),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=5000,
    )
    assert done.file is not None
    assert (await house.openai.files.content(done.file.id)).content == content


async def test_a_part_that_is_not_named_is_left_out(house: House) -> None:
    upload = await created(house, bytes=len(LINE))
    unused, used = await part(house, upload, b"x" * 99), await part(house, upload)
    assert unused != used
    assert await complete(house, upload, [used]) == (200, None)
    assert list(house.storage.objects.values()) == [LINE]


@pytest.mark.parametrize("change", [{"part_ids": ["x"]}, {"part_ids": []}, {"md5": "0" * 32}, {"md5": "x"}])
async def test_a_completion_that_does_not_agree_is_refused_and_may_be_repeated(
    house: House, change: dict[str, object]
) -> None:
    upload = await created(house)
    ids = [await part(house, upload) for _ in range(3)]
    body = {"part_ids": ids, **change}
    answer = await house.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert (answer.status_code, error_of(answer).code) == (400, "invalid_value")
    assert house.database.rows.files == {}
    assert await complete(house, upload, ids) == (200, None)


async def test_sizes_must_agree(house: House) -> None:
    upload = await created(house)
    ids = [await part(house, upload) for _ in range(4)]
    assert await complete(house, upload, ids[:2]) == (400, "invalid_value")
    assert await complete(house, upload, ids) == (400, "invalid_value")
    assert await complete(house, upload, [ids[0]] * 3) == (400, "invalid_value")
    assert await complete(house, upload, ids[1:]) == (200, None)


async def test_a_batch_file_must_start_with_json_however_it_comes(house: House) -> None:
    upload = await created(house, bytes=len(LINE))
    ids = [await part(house, upload, LINE[:3]), await part(house, upload, LINE[3:])]
    answer = await house.http.post(f"/v1/uploads/{upload.id}/complete", json={"part_ids": ids[::-1]})
    assert error_of(answer).message == "Invalid file format for Batch API. Must be .jsonl"
    other = await created(house, bytes=len(LINE), purpose="user_data")
    assert await complete(house, other, [await part(house, other)]) == (200, None)


async def test_a_repeated_completion_gives_the_same_file_and_another_is_refused(house: House) -> None:
    upload = await created(house)
    ids = [await part(house, upload) for _ in range(3)]
    first = await house.openai.uploads.complete(upload.id, part_ids=ids)
    again = await house.openai.uploads.complete(upload.id, part_ids=ids)
    assert first == again
    assert await complete(house, upload, ids[::-1]) == (400, "upload_not_pending")


async def test_completions_at_the_same_instant_make_one_file(house: House) -> None:
    upload = await created(house)
    ids = [await part(house, upload) for _ in range(3)]
    answers = await asyncio.gather(*(complete(house, upload, ids) for _ in range(5)))
    assert set(answers) == {(200, None)}
    assert left(house) == 2


@pytest.mark.parametrize("how", ["completed", "cancelled", "expired"])
async def test_what_is_no_longer_pending_takes_nothing(house: House, how: str) -> None:
    upload = await created(house, bytes=len(LINE))
    part_id = await part(house, upload)
    if how == "completed":
        await complete(house, upload, [part_id])
    elif how == "cancelled":
        await house.openai.uploads.cancel(upload.id)
    else:
        expire(house, upload)
    before = left(house)
    answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, error_of(answer).code) == (400, "upload_not_pending")
    assert await complete(house, upload, ["another"]) == (400, "upload_not_pending")
    assert left(house) == before


async def test_a_cancelled_upload_forgets_its_parts_and_may_be_cancelled_again(house: House) -> None:
    upload = await created(house)
    await part(house, upload)
    for _ in range(2):
        cancelled = await house.openai.uploads.cancel(upload.id)
        assert (cancelled.status, cancelled.file) == ("cancelled", None)
    assert left(house) == 0


@pytest.mark.parametrize("done", [True, False])
async def test_what_is_completed_or_expired_cannot_be_cancelled(house: House, done: bool) -> None:
    upload = await created(house, bytes=len(LINE))
    if done:
        await complete(house, upload, [await part(house, upload)])
    else:
        expire(house, upload)
    answer = await house.http.post(f"/v1/uploads/{upload.id}/cancel")
    assert (answer.status_code, error_of(answer).code) == (400, "upload_not_pending")


async def test_the_file_expires_as_the_upload_asked(house: House) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    upload = await created(house, bytes=len(LINE), expires_after=expiry)
    done = await house.openai.uploads.complete(upload.id, part_ids=[await part(house, upload)])
    assert done.file is not None
    assert done.file.expires_at == done.file.created_at + 7200


async def test_a_part_above_the_limit_is_refused_and_leaves_nothing() -> None:
    async with open_house(max_part_bytes=10) as house:
        upload = await created(house)
        answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
        assert (answer.status_code, error_of(answer).param, left(house)) == (413, "data", 0)


async def test_parts_together_are_bounded() -> None:
    async with open_house(max_upload_bytes=2 * len(LINE)) as house:
        upload = await created(house)
        await part(house, upload)
        await part(house, upload)
        answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", b"x")})
        assert (answer.status_code, error_of(answer).code) == (400, "upload_full")
        assert len(house.storage.objects) == 2


@pytest.mark.parametrize("form", [{}, {"file": ("a", b"x")}, {"data": ("a", b"x"), "file": ("b", b"y")}])
async def test_a_part_is_one_file_named_data(house: House, form: dict[str, tuple[str, bytes]]) -> None:
    upload = await created(house)
    answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files=form or {"other": b""})
    assert (answer.status_code, left(house)) == (400, 0)


async def test_a_part_whose_row_cannot_be_made_leaves_no_object(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await created(house)
    write = house.storage.writer

    def then_lose_the_database(key: str) -> object:
        house.database.rows.failing = DatabaseUnavailable("down")
        return write(key)

    monkeypatch.setattr(house.storage, "writer", then_lose_the_database)
    answer = await house.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, left(house)) == (503, 0)


@pytest.mark.parametrize("upload_id", ["upload_" + "0" * 32, "upload_x", "%00", "a%0Ab", "x" * 2000])
async def test_an_unknown_upload_is_not_found(house: House, upload_id: str) -> None:
    answers = [
        await house.http.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("b", LINE)}),
        await house.http.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": ["x"]}),
        await house.http.post(f"/v1/uploads/{upload_id}/cancel"),
    ]
    assert [(answer.status_code, error_of(answer).param) for answer in answers] == [(404, "id")] * 3


async def test_an_upload_of_another_tenant_does_not_exist(house: House) -> None:
    upload = await created(house)
    for path in ("parts", "complete", "cancel"):
        answer = await house.http.post(f"/v1/uploads/{upload.id}/{path}", headers={"X-Tenant": "red"})
        assert answer.status_code == 404


async def test_a_lost_part_is_an_error_and_no_shorter_file(house: House) -> None:
    upload = await created(house, bytes=len(LINE))
    part_id = await part(house, upload)
    house.storage.objects.clear()
    assert await complete(house, upload, [part_id]) == (500, "content_missing")
    assert house.database.rows.files == {}


async def test_unfinished_uploads_are_swept_an_hour_after_their_time(house: House) -> None:
    unfinished, fresh = await created(house), await created(house, bytes=len(LINE))
    await part(house, unfinished)
    kept = await part(house, fresh)
    orphan = next(iter(house.storage.objects)) + "-orphan"  # of a process that died before it made the row
    house.storage.objects[orphan] = b"x"
    expire(house, unfinished)
    now = datetime.now(UTC)
    retention = Runs(house.database, house.storage)
    assert [(await retention.run(Kind.UPLOADS, now)).count for _ in range(2)] == [2, 0]
    assert house.database.rows.uploads["default", unfinished.id].status == "expired"
    assert await complete(house, fresh, [kept]) == (200, None)
