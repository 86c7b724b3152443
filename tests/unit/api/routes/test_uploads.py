"""/v1/uploads: create, add parts, complete, cancel, and clean up."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.api_objects.openai import PartObject, UploadObject
from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.database.errors import DatabaseUnavailable
from tests.activities.retention.runner import RetentionRunner
from tests.fakes.api import LINE, ApiFixture, error_of, keys_of, open_api, read

BODY: dict[str, object] = {
    "filename": "in.jsonl",
    "purpose": "batch",
    "bytes": 3 * len(LINE),
    "mime_type": "application/jsonl",
}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def created(api: ApiFixture, **changes: object) -> UploadObject:
    return read(await api.http.post("/v1/uploads", json={**BODY, **changes}), UploadObject)


async def part(api: ApiFixture, upload: UploadObject, data: bytes = LINE) -> str:
    answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("blob", data)})
    return read(answer, PartObject).id


async def complete(
    api: ApiFixture, upload: UploadObject, ids: list[str], **more: object
) -> tuple[int, str | None]:
    """Complete the upload. Return the status and the error code."""
    body = {"part_ids": ids, **more}
    answer = await api.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    return answer.status_code, None if answer.is_success else error_of(answer).code


def expire(api: ApiFixture, upload: UploadObject) -> None:
    key = ("default", upload.id)
    row = api.database.rows.uploads[key]
    past = datetime.now(UTC) - timedelta(hours=2)
    api.database.rows.uploads[key] = row.model_copy(update={"expires_at": past})


def left(api: ApiFixture) -> int:
    """Return the number of stored objects plus the number of rows of parts and files."""
    rows = api.database.rows
    return len(api.storage.objects) + len(rows.parts) + len(rows.files)


async def test_a_new_upload_has_every_key_of_the_contract(api: ApiFixture) -> None:
    answer = await api.http.post("/v1/uploads", json=BODY)
    upload = read(answer, UploadObject)
    assert keys_of(answer) == {
        *("id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "file"),
    }
    assert upload.id.startswith("upload_")
    assert (upload.status, upload.file, upload.expires_at - upload.created_at) == ("pending", None, 3600)


async def test_the_order_of_the_ids_is_the_order_of_the_bytes(api: ApiFixture) -> None:
    pieces = [LINE[:9], LINE[9:], LINE]
    upload = await created(api, bytes=2 * len(LINE))
    ids = await asyncio.gather(*(part(api, upload, piece) for piece in pieces[::-1]))
    md5 = hashlib.md5(LINE * 2).hexdigest()
    done = await api.openai.uploads.complete(upload.id, part_ids=ids[::-1], md5=md5.upper())
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.bytes, done.file.filename, done.file.purpose) == (len(LINE) * 2, "in.jsonl", "batch")
    assert (await api.openai.files.content(done.file.id)).content == LINE * 2
    assert left(api) == 2  # the file's row and object


async def test_the_official_client_splits_a_file_by_itself(api: ApiFixture) -> None:
    content = LINE * 1000
    done = await api.openai.uploads.upload_file_chunked(
        file=content,
        filename="a.jsonl",
        bytes=len(content),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=5000,
    )
    assert done.file is not None
    assert (await api.openai.files.content(done.file.id)).content == content


async def test_a_part_that_is_not_named_is_not_in_the_file(api: ApiFixture) -> None:
    upload = await created(api, bytes=len(LINE))
    unused, used = await part(api, upload, b"x" * 99), await part(api, upload)
    assert unused != used
    assert await complete(api, upload, [used]) == (200, None)
    assert list(api.storage.objects.values()) == [LINE]


@pytest.mark.parametrize("change", [{"part_ids": ["x"]}, {"part_ids": []}, {"md5": "0" * 32}, {"md5": "x"}])
async def test_a_completion_with_wrong_parts_or_checksum_is_refused_and_may_be_repeated(
    api: ApiFixture, change: dict[str, object]
) -> None:
    upload = await created(api)
    ids = [await part(api, upload) for _ in range(3)]
    body = {"part_ids": ids, **change}
    answer = await api.http.post(f"/v1/uploads/{upload.id}/complete", json=body)
    assert (answer.status_code, error_of(answer).code) == (400, "invalid_value")
    assert api.database.rows.files == {}
    assert await complete(api, upload, ids) == (200, None)


async def test_sizes_must_agree(api: ApiFixture) -> None:
    upload = await created(api)
    ids = [await part(api, upload) for _ in range(4)]
    assert await complete(api, upload, ids[:2]) == (400, "invalid_value")
    assert await complete(api, upload, ids) == (400, "invalid_value")
    assert await complete(api, upload, [ids[0]] * 3) == (400, "invalid_value")
    assert await complete(api, upload, ids[1:]) == (200, None)


async def test_a_batch_file_must_start_with_json_even_if_uploaded_in_parts(api: ApiFixture) -> None:
    upload = await created(api, bytes=len(LINE))
    ids = [await part(api, upload, LINE[:3]), await part(api, upload, LINE[3:])]
    answer = await api.http.post(f"/v1/uploads/{upload.id}/complete", json={"part_ids": ids[::-1]})
    assert error_of(answer).message == "Invalid file format for Batch API. Must be .jsonl"
    other = await created(api, bytes=len(LINE), purpose="user_data")
    assert await complete(api, other, [await part(api, other)]) == (200, None)


async def test_a_repeated_completion_gives_the_same_file_and_another_is_refused(api: ApiFixture) -> None:
    upload = await created(api)
    ids = [await part(api, upload) for _ in range(3)]
    first = await api.openai.uploads.complete(upload.id, part_ids=ids)
    again = await api.openai.uploads.complete(upload.id, part_ids=ids)
    assert first == again
    assert await complete(api, upload, ids[::-1]) == (400, "upload_not_pending")


async def test_concurrent_completions_create_one_file(api: ApiFixture) -> None:
    upload = await created(api)
    ids = [await part(api, upload) for _ in range(3)]
    answers = await asyncio.gather(*(complete(api, upload, ids) for _ in range(5)))
    assert set(answers) == {(200, None)}
    assert left(api) == 2


@pytest.mark.parametrize("how", ["completed", "cancelled", "expired"])
async def test_an_upload_that_is_no_longer_pending_accepts_no_part(api: ApiFixture, how: str) -> None:
    upload = await created(api, bytes=len(LINE))
    part_id = await part(api, upload)
    if how == "completed":
        await complete(api, upload, [part_id])
    elif how == "cancelled":
        await api.openai.uploads.cancel(upload.id)
    else:
        expire(api, upload)
    before = left(api)
    answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, error_of(answer).code) == (400, "upload_not_pending")
    assert await complete(api, upload, ["another"]) == (400, "upload_not_pending")
    assert left(api) == before


async def test_a_cancelled_upload_forgets_its_parts_and_may_be_cancelled_again(api: ApiFixture) -> None:
    upload = await created(api)
    await part(api, upload)
    for _ in range(2):
        cancelled = await api.openai.uploads.cancel(upload.id)
        assert (cancelled.status, cancelled.file) == ("cancelled", None)
    assert left(api) == 0


@pytest.mark.parametrize("done", [True, False])
async def test_a_completed_or_expired_upload_cannot_be_cancelled(api: ApiFixture, done: bool) -> None:
    upload = await created(api, bytes=len(LINE))
    if done:
        await complete(api, upload, [await part(api, upload)])
    else:
        expire(api, upload)
    answer = await api.http.post(f"/v1/uploads/{upload.id}/cancel")
    assert (answer.status_code, error_of(answer).code) == (400, "upload_not_pending")


async def test_the_file_expires_as_the_upload_requested(api: ApiFixture) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    upload = await created(api, bytes=len(LINE), expires_after=expiry)
    done = await api.openai.uploads.complete(upload.id, part_ids=[await part(api, upload)])
    assert done.file is not None
    assert done.file.expires_at == done.file.created_at + 7200


async def test_a_part_above_the_limit_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("routes.uploads", "services.files.upload_assembly"):
        monkeypatch.setattr(f"batchwright.api.{module}.MAX_PART_BYTES", 10)
    async with open_api() as api:
        upload = await created(api)
        answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
        assert (answer.status_code, error_of(answer).param, left(api)) == (413, "data", 0)


async def test_parts_together_are_bounded() -> None:
    async with open_api(max_upload_bytes=2 * len(LINE)) as api:
        upload = await created(api)
        await part(api, upload)
        await part(api, upload)
        answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", b"x")})
        assert (answer.status_code, error_of(answer).code) == (400, "upload_full")
        assert len(api.storage.objects) == 2


async def test_parts_beyond_the_announced_size_count_towards_the_storage_quota() -> None:
    async with open_api(max_stored_bytes=5 * len(LINE)) as api:
        small, whole = await created(api, bytes=1), await created(api, bytes=3 * len(LINE))
        answers = [
            await api.http.post(f"/v1/uploads/{small.id}/parts", files={"data": ("b", LINE)})
            for _ in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert error_of(answers[-1]).code == "rate_limit_exceeded"
        ids = [await part(api, whole) for _ in range(3)]
        assert await complete(api, whole, ids) == (200, None)


@pytest.mark.parametrize("form", [{}, {"file": ("a", b"x")}, {"data": ("a", b"x"), "file": ("b", b"y")}])
async def test_a_part_is_one_file_named_data(api: ApiFixture, form: dict[str, tuple[str, bytes]]) -> None:
    upload = await created(api)
    answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files=form or {"other": b""})
    assert (answer.status_code, left(api)) == (400, 0)


async def test_a_part_whose_row_cannot_be_written_leaves_no_object(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await created(api)
    write = api.storage.writer

    def then_lose_the_database(key: str) -> object:
        api.database.rows.failing = DatabaseUnavailable("down")
        return write(key)

    monkeypatch.setattr(api.storage, "writer", then_lose_the_database)
    answer = await api.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": ("b", LINE)})
    assert (answer.status_code, left(api)) == (503, 0)


@pytest.mark.parametrize("upload_id", ["upload_" + "0" * 32, "upload_x", "%00", "a%0Ab", "x" * 2000])
async def test_an_unknown_upload_is_not_found(api: ApiFixture, upload_id: str) -> None:
    answers = [
        await api.http.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("b", LINE)}),
        await api.http.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": ["x"]}),
        await api.http.post(f"/v1/uploads/{upload_id}/cancel"),
    ]
    assert [(answer.status_code, error_of(answer).param) for answer in answers] == [(404, "id")] * 3


async def test_an_upload_of_another_tenant_does_not_exist(api: ApiFixture) -> None:
    upload = await created(api)
    for path in ("parts", "complete", "cancel"):
        answer = await api.http.post(f"/v1/uploads/{upload.id}/{path}", headers={"X-Tenant": "red"})
        assert answer.status_code == 404


async def test_a_lost_part_is_an_error_and_not_a_shorter_file(api: ApiFixture) -> None:
    upload = await created(api, bytes=len(LINE))
    part_id = await part(api, upload)
    api.storage.objects.clear()
    assert await complete(api, upload, [part_id]) == (500, "content_missing")
    assert api.database.rows.files == {}


async def test_unfinished_uploads_are_deleted_an_hour_after_they_expire(api: ApiFixture) -> None:
    unfinished, fresh = await created(api), await created(api, bytes=len(LINE))
    await part(api, unfinished)
    pending_part = await part(api, fresh)
    orphan = next(iter(api.storage.objects)) + "-orphan"  # of a process that crashed before the insert
    api.storage.objects[orphan] = b"x"
    expire(api, unfinished)
    now = datetime.now(UTC)
    retention = RetentionRunner(api.database, api.storage)
    assert [(await retention.run(RetentionKind.UPLOADS, now)).count for _ in range(2)] == [2, 0]
    assert api.database.rows.uploads["default", unfinished.id].status == "expired"
    assert await complete(api, fresh, [pending_part]) == (200, None)


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 400)])
async def test_an_upload_may_reach_its_limit_but_not_exceed_it(more: int, status: int) -> None:
    async with open_api(max_batch_file_bytes=100) as api:
        body = {"filename": "a", "purpose": "batch", "bytes": 100 + more, "mime_type": "application/jsonl"}
        assert (await api.http.post("/v1/uploads", json=body)).status_code == status
