"""/v1/files: upload forms that are in pieces, truncated, too large or malformed."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from batchwright.api.services.files import first_line
from tests.fakes.api import LINE, ApiFixture, error_of, open_api
from tests.unit.api.routes.test_files import left

FORM = "multipart/form-data; boundary=cut"
PURPOSE = b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%b\r\n'
END = b"--cut--\r\n"


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def send(api: ApiFixture, pieces: Sequence[bytes], content_type: str = FORM) -> tuple[int, str]:
    """Upload the pieces without a content length. Return the status and the error message."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    answer = await api.http.post("/v1/files", content=body(), headers={"Content-Type": content_type})
    return answer.status_code, "" if answer.is_success else error_of(answer).message


async def test_the_purpose_may_come_before_or_after_the_file(api: ApiFixture) -> None:
    for parts in ((PURPOSE, FILE % LINE, END), (FILE % LINE, PURPOSE, END)):
        assert await send(api, parts) == (200, "")
    assert set(api.storage.objects.values()) == {LINE}


async def test_a_form_may_be_split_anywhere(api: ApiFixture) -> None:
    content = LINE + b"\r\n--cu\r\n-" + LINE  # looks like a boundary but is not one
    form = PURPOSE + FILE % content + END
    assert await send(api, [form[at : at + 1] for at in range(len(form))]) == (200, "")
    assert list(api.storage.objects.values()) == [content]


@pytest.mark.parametrize(
    "form",
    [PURPOSE + FILE % LINE, FILE % LINE + PURPOSE, PURPOSE + (FILE % LINE)[:-9], PURPOSE, b"", b"x" * 99],
)
async def test_a_truncated_body_is_refused_and_leaves_nothing(api: ApiFixture, form: bytes) -> None:
    status, _ = await send(api, [form])
    assert (status, left(api)) == (400, 0)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary*=idna''%ff",
        "multipart/form-data; boundary*=unicode_escape''%5Cud800",
        'multipart/form-data; boundary=cut; x="' + ";" * 1000,
    ],
)
async def test_a_body_that_is_no_form_is_refused(api: ApiFixture, content_type: str) -> None:
    assert (await send(api, [PURPOSE + FILE % LINE + END], content_type))[0] == 400


@pytest.mark.parametrize("before", [True, False])
async def test_a_batch_file_above_its_limit_is_refused_while_it_streams(before: bool) -> None:
    async with open_api(max_batch_file_bytes=100, max_file_bytes=1000) as api:
        file = FILE % (LINE * 4)
        form = (PURPOSE, file, END) if before else (file, PURPOSE, END)
        assert await send(api, form) == (413, "The file is too large: at most 100 bytes are allowed.")
        assert left(api) == 0
        assert (await api.upload(LINE * 4, purpose="user_data")).bytes == 4 * len(LINE)


async def test_a_body_with_a_too_large_content_length_is_not_read() -> None:
    async with open_api(max_batch_file_bytes=100, max_file_bytes=100) as api:
        headers = {"Content-Type": FORM, "Content-Length": str(10**12)}
        answer = await api.http.post("/v1/files", content=PURPOSE, headers=headers)
    assert (answer.status_code, error_of(answer).param) == (413, "file")


async def test_a_refused_upload_is_refused_before_its_end(api: ApiFixture) -> None:
    read_pieces: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield PURPOSE + FILE.split(b"%b")[0] + b"no json\n"
        for number in range(10_000):
            read_pieces.append(number)
            yield b"x" * 1024 * 1024

    answer = await api.http.post("/v1/files", content=body(), headers={"Content-Type": FORM})
    assert error_of(answer).message == "Invalid file format for Batch API. Must be .jsonl"
    assert len(read_pieces) < 100
    assert left(api) == 0


async def test_the_first_line_is_parsed_once_however_many_pieces_follow_it(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def has_json_syntax(line: bytes) -> bool:
        parsed.append(line)
        return True

    monkeypatch.setattr(first_line, "has_json_syntax", has_json_syntax)
    pieces = [PURPOSE + FILE.split(b"%b")[0] + LINE, *[LINE[:5]] * 20, b"\r\n" + END]
    assert await send(api, pieces) == (200, "")
    assert parsed == [LINE.strip()]


@pytest.mark.parametrize(
    "content", [b"", b"no json\n" + LINE, b'{"a": \n', b'{"a": 1} x', b"\n\nno json", b"\xff\xfe{"]
)
@pytest.mark.parametrize("before", [True, False])
async def test_a_batch_file_that_does_not_start_with_json_is_refused(
    api: ApiFixture, content: bytes, before: bool
) -> None:
    form = (PURPOSE, FILE % content, END) if before else (FILE % content, PURPOSE, END)
    assert await send(api, form) == (400, "Invalid file format for Batch API. Must be .jsonl")
    assert left(api) == 0


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
    api: ApiFixture, fields: dict[str, str], code: str, param: str
) -> None:
    answer = await api.http.post("/v1/files", files={"file": ("a", LINE)}, data=fields)
    error = error_of(answer)
    assert (answer.status_code, error.code, error.param, left(api)) == (400, code, param, 0)


async def test_a_form_without_a_file_or_with_two_is_refused(api: ApiFixture) -> None:
    none = await send(api, [PURPOSE, END])
    two = await send(api, [PURPOSE, FILE % LINE, FILE % LINE, END])
    assert none == (400, "Missing required parameter: 'file'.")
    assert two == (400, "The form field 'file' is given twice.")
    assert left(api) == 0


@pytest.mark.parametrize(
    "part", [b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 5000, PURPOSE * 50]
)
async def test_a_form_of_oversized_or_countless_fields_is_refused(api: ApiFixture, part: bytes) -> None:
    assert (await send(api, [part, END]))[0] == 400


async def test_a_file_name_that_is_not_text_is_refused_with_a_clear_message(api: ApiFixture) -> None:
    part = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\nx\r\n'
    status, message = await send(api, [part, END])
    assert (status, message.endswith("form: Segment header failed to decode.")) == (400, True)
