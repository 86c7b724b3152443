"""/v1/files: upload, list, get, delete."""

import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from api.objects import Deleted, FileObject, FilePage, file_page
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import FileRow
from batchwright.storage.base import StorageFull, StorageUnavailable
from tests.fakes.api import LINE, House, error_of, open_house, read

DAY_SECONDS = 86_400


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


def left(house: House) -> int:
    """How many objects and rows there are."""
    return len(house.storage.objects) + len(house.database.rows.files)


async def test_a_batch_file_is_processed_and_expires_after_30_days(house: House) -> None:
    file = await house.upload(LINE)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 30 * DAY_SECONDS
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(LINE),
        "input.jsonl",
        "batch",
        "processed",
    )
    assert list(house.storage.objects.values()) == [LINE]


async def test_other_files_do_not_expire_and_need_not_be_jsonl(house: House) -> None:
    file = await house.upload(b"\x00 not json", purpose="user_data")
    assert (file.expires_at, file.purpose) == (None, "user_data")


async def test_an_expiry_may_be_asked_for(house: House) -> None:
    file = await house.openai.files.create(
        file=("a.jsonl", LINE), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600


async def test_a_file_may_reach_its_limit() -> None:
    async with open_house(max_batch_file_bytes=len(LINE)) as house:
        assert (await house.upload(LINE)).bytes == len(LINE)


@pytest.mark.parametrize(
    "content", [b"\n \n", b"\xef\xbb\xbf" + LINE, b"\r\n" + LINE, LINE.strip(), LINE + b"no json"]
)
async def test_what_validation_will_look_at_is_accepted(house: House, content: bytes) -> None:
    assert (await house.upload(content)).bytes == len(content)


@pytest.mark.parametrize("error", [StorageUnavailable("down"), StorageFull("full")])
async def test_without_storage_an_upload_is_to_be_tried_again(house: House, error: Exception) -> None:
    house.storage.failing = error
    answer = await house.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert int(answer.headers["retry-after"]) > 0
    assert house.database.rows.files == {}


async def test_an_upload_whose_row_cannot_be_made_leaves_no_object(house: House) -> None:
    house.database.rows.failing = DatabaseUnavailable("down")
    answer = await house.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
    assert (answer.status_code, left(house)) == (503, 0)


async def test_files_are_listed_by_purpose_order_and_page(house: House) -> None:
    made = [(await house.upload()).id for _ in range(3)]
    other = (await house.upload(purpose="user_data")).id
    assert [file.id async for file in house.openai.files.list(limit=2)] == [other, *made[::-1]]
    assert [file.id async for file in house.openai.files.list(order="asc", limit=1)] == [*made, other]
    assert [file.id async for file in house.openai.files.list(purpose="user_data")] == [other]
    assert [file.id async for file in house.openai.files.list(purpose="nothing")] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=10001", 400),
        ("limit=0", 400),
        ("order=up", 400),
        ("after=x", 404),
        ("after=file-" + "0" * 32, 404),
    ],
)
async def test_a_wrong_list_is_refused(house: House, query: str, status: int) -> None:
    answer = await house.http.get(f"/v1/files?{query}")
    assert (answer.status_code, error_of(answer).type) == (status, "invalid_request_error")


async def test_a_deleted_file_is_gone_with_its_bytes(house: House) -> None:
    file = await house.upload()
    assert read(await house.http.delete(f"/v1/files/{file.id}"), Deleted) == Deleted(id=file.id)
    assert left(house) == 0
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = await house.http.request(method, f"/v1/files/{file.id}{path}")
        assert (answer.status_code, error_of(answer).param) == (404, "id")


async def test_a_file_that_a_live_batch_reads_cannot_be_deleted(house: House) -> None:
    batch = await house.create()
    answer = await house.http.delete(f"/v1/files/{batch.input_file_id}")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert left(house) == 2


async def test_a_file_of_another_tenant_does_not_exist(house: House) -> None:
    file = await house.upload(tenant="blue")
    red = {"X-Tenant": "red"}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert (
            await house.http.request(method, f"/v1/files/{file.id}{path}", headers=red)
        ).status_code == 404
    assert read(await house.http.get("/v1/files", headers=red), FilePage).data == []
    assert (await house.http.get("/v1/files", params={"after": file.id}, headers=red)).status_code == 404
    assert left(house) == 2


async def test_a_list_of_thousands_is_made_beside_the_event_loop(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold up everybody else's requests for as long as it takes."""
    made_in = list[bool]()

    def noted(rows: list[FileRow], *, more: bool) -> FilePage:
        made_in.append(threading.current_thread() is threading.main_thread())
        return file_page(rows, more=more)

    monkeypatch.setattr("api.files.file_page", noted)
    one = await house.upload()
    row = house.database.rows.files["default", one.id]
    assert len(read(await house.http.get("/v1/files"), FilePage).data) == 1
    for number in range(1_000):
        id = f"file-{number:032x}"
        house.database.rows.files["default", id] = row.model_copy(update={"id": id})
    assert len(read(await house.http.get("/v1/files"), FilePage).data) == 1_001
    assert made_in == [True, False]


async def test_an_expired_file_is_unknown(house: House) -> None:
    file = await house.upload()
    key = ("default", file.id)
    row = house.database.rows.files[key]
    house.database.rows.files[key] = row.model_copy(update={"expires_at": datetime.now(UTC)})
    assert (await house.http.get(f"/v1/files/{file.id}")).status_code == 404


async def test_a_file_is_described_as_it_was_when_uploaded(house: House) -> None:
    file = await house.upload()
    assert read(await house.http.get(f"/v1/files/{file.id}"), FileObject) == file
