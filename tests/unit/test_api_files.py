"""/v1/files: upload, list, get, delete."""

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest

from api.objects import Deleted, FileObject, FilePage, file_page
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import FileRow
from batchwright.storage.base import StorageFull, StorageUnavailable
from tests.fakes.api import LINE, House, error_of, open_house, read

DAY_SECONDS = 86_400
FORM = "multipart/form-data; boundary=cut"
PURPOSE = b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%b\r\n'
END = b"--cut--\r\n"


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def send(house: House, pieces: Sequence[bytes], content_type: str = FORM) -> tuple[int, str]:
    """Uploads the pieces as they are, without a length; the status and the error's message."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    answer = await house.http.post("/v1/files", content=body(), headers={"Content-Type": content_type})
    return answer.status_code, "" if answer.is_success else error_of(answer).message


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


async def test_the_purpose_may_come_before_or_after_the_file(house: House) -> None:
    for parts in ((PURPOSE, FILE % LINE, END), (FILE % LINE, PURPOSE, END)):
        assert await send(house, parts) == (200, "")
    assert set(house.storage.objects.values()) == {LINE}


async def test_a_form_may_be_cut_into_pieces_anywhere(house: House) -> None:
    content = LINE + b"\r\n--cu\r\n-" + LINE  # what looks like a boundary, and is none
    form = PURPOSE + FILE % content + END
    assert await send(house, [form[at : at + 1] for at in range(len(form))]) == (200, "")
    assert list(house.storage.objects.values()) == [content]


@pytest.mark.parametrize(
    "form",
    [PURPOSE + FILE % LINE, FILE % LINE + PURPOSE, PURPOSE + (FILE % LINE)[:-9], PURPOSE, b"", b"x" * 99],
)
async def test_a_body_that_is_cut_off_is_refused_and_leaves_nothing(house: House, form: bytes) -> None:
    status, _ = await send(house, [form])
    assert (status, left(house)) == (400, 0)


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
async def test_a_body_that_is_no_form_is_refused(house: House, content_type: str) -> None:
    assert (await send(house, [PURPOSE + FILE % LINE + END], content_type))[0] == 400


@pytest.mark.parametrize("before", [True, False])
async def test_a_batch_file_above_its_limit_is_refused_while_it_streams(before: bool) -> None:
    async with open_house(max_batch_file_bytes=100, max_file_bytes=1000) as house:
        file = FILE % (LINE * 4)
        form = (PURPOSE, file, END) if before else (file, PURPOSE, END)
        assert await send(house, form) == (413, "The file is too large: at most 100 bytes are allowed.")
        assert left(house) == 0
        assert (await house.upload(LINE * 4, purpose="user_data")).bytes == 4 * len(LINE)


async def test_a_file_may_reach_its_limit() -> None:
    async with open_house(max_batch_file_bytes=len(LINE)) as house:
        assert (await house.upload(LINE)).bytes == len(LINE)


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    async with open_house(max_batch_file_bytes=100, max_file_bytes=100) as house:
        headers = {"Content-Type": FORM, "Content-Length": str(10**12)}
        answer = await house.http.post("/v1/files", content=PURPOSE, headers=headers)
    assert (answer.status_code, error_of(answer).param) == (413, "file")


async def test_a_refused_upload_is_refused_before_its_end(house: House) -> None:
    read_pieces: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield PURPOSE + FILE.split(b"%b")[0] + b"no json\n"
        for number in range(10_000):
            read_pieces.append(number)
            yield b"x" * 1024 * 1024

    answer = await house.http.post("/v1/files", content=body(), headers={"Content-Type": FORM})
    assert error_of(answer).message == "Invalid file format for Batch API. Must be .jsonl"
    assert len(read_pieces) < 100
    assert left(house) == 0


@pytest.mark.parametrize(
    "content", [b"", b"no json\n" + LINE, b'{"a": \n', b'{"a": 1} x', b"\n\nno json", b"\xff\xfe{"]
)
@pytest.mark.parametrize("before", [True, False])
async def test_a_batch_file_that_does_not_start_with_json_is_refused(
    house: House, content: bytes, before: bool
) -> None:
    form = (PURPOSE, FILE % content, END) if before else (FILE % content, PURPOSE, END)
    assert await send(house, form) == (400, "Invalid file format for Batch API. Must be .jsonl")
    assert left(house) == 0


@pytest.mark.parametrize(
    "content", [b"\n \n", b"\xef\xbb\xbf" + LINE, b"\r\n" + LINE, LINE.strip(), LINE + b"no json"]
)
async def test_what_validation_will_look_at_is_accepted(house: House, content: bytes) -> None:
    assert (await house.upload(content)).bytes == len(content)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "purpose"),
        ({"purpose": "batch_output"}, "invalid_value", "purpose"),
        ({"purpose": "x"}, "invalid_value", "purpose"),
        ({"purpose": "batch", "colour": "red"}, "unknown_parameter", "colour"),
        (
            {"purpose": "batch", "expires_after[seconds]": "3600"},
            "missing_required_parameter",
            "expires_after.anchor",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at"},
            "missing_required_parameter",
            "expires_after.seconds",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "invalid_value",
            "expires_after.anchor",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "invalid_value",
            "expires_after.seconds",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
            "invalid_type",
            "expires_after.seconds",
        ),
    ],
)
async def test_a_wrong_field_of_the_form_is_named(
    house: House, fields: dict[str, str], code: str, param: str
) -> None:
    answer = await house.http.post("/v1/files", files={"file": ("a", LINE)}, data=fields)
    error = error_of(answer)
    assert (answer.status_code, error.code, error.param, left(house)) == (400, code, param, 0)


async def test_a_form_without_a_file_or_with_two_is_refused(house: House) -> None:
    none = await send(house, [PURPOSE, END])
    two = await send(house, [PURPOSE, FILE % LINE, FILE % LINE, END])
    assert none == (400, "Missing required parameter: 'file'.")
    assert two == (400, "The form field 'file' is given twice.")
    assert left(house) == 0


@pytest.mark.parametrize(
    "part", [b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 5000, PURPOSE * 50]
)
async def test_a_form_of_oversized_or_countless_fields_is_refused(house: House, part: bytes) -> None:
    assert (await send(house, [part, END]))[0] == 400


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


async def test_a_file_name_that_is_no_text_is_refused_in_words(house: House) -> None:
    part = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\nx\r\n'
    status, message = await send(house, [part, END])
    assert (status, message.endswith("form: Segment header failed to decode.")) == (400, True)


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
