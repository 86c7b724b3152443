"""/v1/files: the forms of uploads, as they come in pieces, cut off, too large or wrong."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from tests.fakes.api import LINE, House, error_of, open_house
from tests.unit.test_api_files import left

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


async def test_a_file_name_that_is_no_text_is_refused_in_words(house: House) -> None:
    part = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\nx\r\n'
    status, message = await send(house, [part, END])
    assert (status, message.endswith("form: Segment header failed to decode.")) == (400, True)
