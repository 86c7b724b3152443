"""/v1/files: upload, list, get, delete."""

import asyncio
import threading
from collections.abc import AsyncGenerator, MutableMapping
from datetime import UTC, datetime
from typing import Any

import pytest

from batchwright.api.schemas.openai_objects import file_page
from batchwright.contracts.api_objects.openai import DeletedFile, FileObject, FilePage
from batchwright.contracts.api_objects.pages import ListPage
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import FileRow
from batchwright.storage.base import StorageFull, StorageUnavailable
from tests.fakes.api import LINE, ApiFixture, error_of, open_api, read

DAY_SECONDS = 86_400
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"api")],
    "client": ("127.0.0.1", 1),
    "server": ("api", 80),
}


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def left(api: ApiFixture) -> int:
    """Return the number of stored objects plus the number of file rows."""
    return len(api.storage.objects) + len(api.database.rows.files)


async def test_a_batch_file_is_processed_and_expires_after_30_days(api: ApiFixture) -> None:
    file = await api.upload(LINE)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == 30 * DAY_SECONDS
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(LINE),
        "input.jsonl",
        "batch",
        "processed",
    )
    assert list(api.storage.objects.values()) == [LINE]


async def test_other_files_do_not_expire_and_need_not_be_jsonl(api: ApiFixture) -> None:
    file = await api.upload(b"\x00 not json", purpose="user_data")
    assert (file.expires_at, file.purpose) == (None, "user_data")


async def test_an_expiry_can_be_requested(api: ApiFixture) -> None:
    file = await api.openai.files.create(
        file=("a.jsonl", LINE), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600


async def test_a_file_may_reach_its_limit() -> None:
    async with open_api(max_batch_file_bytes=len(LINE)) as api:
        assert (await api.upload(LINE)).bytes == len(LINE)


@pytest.mark.parametrize(
    "content", [b"\n \n", b"\xef\xbb\xbf" + LINE, b"\r\n" + LINE, LINE.strip(), LINE + b"no json"]
)
async def test_content_that_only_validation_checks_is_accepted(api: ApiFixture, content: bytes) -> None:
    assert (await api.upload(content)).bytes == len(content)


@pytest.mark.parametrize("error", [StorageUnavailable("down"), StorageFull("full")])
async def test_without_storage_an_upload_gets_a_503_with_retry_after(
    api: ApiFixture, error: Exception
) -> None:
    api.storage.failing = error
    answer = await api.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
    assert (answer.status_code, error_of(answer).type) == (503, "server_error")
    assert int(answer.headers["retry-after"]) > 0
    assert api.database.rows.files == {}


async def test_a_file_whose_row_cannot_be_written_leaves_no_object(api: ApiFixture) -> None:
    api.database.rows.failing = DatabaseUnavailable("down")
    answer = await api.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
    assert (answer.status_code, left(api)) == (503, 0)


async def test_files_are_listed_by_purpose_order_and_page(api: ApiFixture) -> None:
    file_ids = [(await api.upload()).id for _ in range(3)]
    other = (await api.upload(purpose="user_data")).id
    assert [file.id async for file in api.openai.files.list(limit=2)] == [other, *file_ids[::-1]]
    assert [file.id async for file in api.openai.files.list(order="asc", limit=1)] == [*file_ids, other]
    assert [file.id async for file in api.openai.files.list(purpose="user_data")] == [other]
    assert [file.id async for file in api.openai.files.list(purpose="nothing")] == []


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
async def test_a_wrong_list_is_refused(api: ApiFixture, query: str, status: int) -> None:
    answer = await api.http.get(f"/v1/files?{query}")
    assert (answer.status_code, error_of(answer).type) == (status, "invalid_request_error")


async def test_a_deleted_file_is_deleted_with_its_object(api: ApiFixture) -> None:
    file = await api.upload()
    assert read(await api.http.delete(f"/v1/files/{file.id}"), DeletedFile) == DeletedFile(id=file.id)
    assert left(api) == 0
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = await api.http.request(method, f"/v1/files/{file.id}{path}")
        assert (answer.status_code, error_of(answer).param) == (404, "id")


async def test_a_file_that_a_live_batch_reads_cannot_be_deleted(api: ApiFixture) -> None:
    batch = await api.create()
    answer = await api.http.delete(f"/v1/files/{batch.input_file_id}")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert left(api) == 2


async def test_a_file_of_another_tenant_does_not_exist(api: ApiFixture) -> None:
    file = await api.upload(tenant="blue")
    red = {"X-Tenant": "red"}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert (await api.http.request(method, f"/v1/files/{file.id}{path}", headers=red)).status_code == 404
    assert read(await api.http.get("/v1/files", headers=red), FilePage).data == []
    assert (await api.http.get("/v1/files", params={"after": file.id}, headers=red)).status_code == 404
    assert left(api) == 2


async def test_a_tenant_that_reads_its_downloads_slowly_takes_a_limited_part_of_the_memory(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.held_bytes, "limit_per_tenant", 2 * len(LINE))
    path = f"/v1/files/{(await api.upload()).id}/content"
    reads, started = asyncio.Event(), asyncio.Semaphore(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            started.release()
            await reads.wait()

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    scope = {**SCOPE, "path": path, "raw_path": path.encode()}
    async with asyncio.TaskGroup() as downloads:
        for _ in range(2):
            downloads.create_task(api.app(scope, receive, send))
            await started.acquire()
        refused = await api.http.get(path)
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        assert (await api.http.head(path)).status_code == 200
        reads.set()
    assert (await api.http.get(path)).content == LINE


async def test_a_list_of_thousands_is_built_off_the_event_loop(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the list was built on the event loop, it would block the requests of all other clients."""
    in_worker_thread = list[bool]()

    def noted(rows: list[FileRow], *, more: bool) -> ListPage[FileObject]:
        in_worker_thread.append(threading.current_thread() is threading.main_thread())
        return file_page(rows, more=more)

    monkeypatch.setattr("batchwright.api.routes.files.file_page", noted)
    one = await api.upload()
    row = api.database.rows.files["default", one.id]
    assert len(read(await api.http.get("/v1/files"), FilePage).data) == 1
    for number in range(1_000):
        id = f"file-{number:032x}"
        api.database.rows.files["default", id] = row.model_copy(update={"id": id})
    assert len(read(await api.http.get("/v1/files"), FilePage).data) == 1_001
    assert in_worker_thread == [True, False]


async def test_an_expired_file_is_unknown(api: ApiFixture) -> None:
    file = await api.upload()
    key = ("default", file.id)
    row = api.database.rows.files[key]
    api.database.rows.files[key] = row.model_copy(update={"expires_at": datetime.now(UTC)})
    assert (await api.http.get(f"/v1/files/{file.id}")).status_code == 404


async def test_a_file_is_described_as_it_was_when_uploaded(api: ApiFixture) -> None:
    file = await api.upload()
    assert read(await api.http.get(f"/v1/files/{file.id}"), FileObject) == file


async def test_a_file_one_byte_above_its_limit_is_refused() -> None:
    async with open_api(max_batch_file_bytes=len(LINE) - 1, max_file_bytes=len(LINE) - 1) as api:
        answer = await api.http.post("/v1/files", files={"file": ("a", LINE)}, data={"purpose": "batch"})
        assert answer.status_code == 413
