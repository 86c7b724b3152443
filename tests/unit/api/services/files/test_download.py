"""/v1/files/{file_id}/content: whole files, byte ranges, file names."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import LINE, ApiFixture, error_of, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_content_is_complete_with_its_name_and_etag(api: ApiFixture) -> None:
    file = await api.upload(LINE * 3)
    answer = await api.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, answer.content) == (200, LINE * 3)
    assert answer.headers["content-length"] == str(len(LINE) * 3)
    assert answer.headers["content-disposition"] == 'attachment; filename="input.jsonl"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["cache-control"] == "private, no-cache"
    for known in (f'W/"other", {answer.headers["etag"]}', "W/" + answer.headers["etag"], "*"):
        again = {"If-None-Match": known}
        assert (await api.http.get(f"/v1/files/{file.id}/content", headers=again)).status_code == 304


async def test_a_name_beyond_ascii_survives_in_both_directions(api: ApiFixture) -> None:
    file = await api.openai.files.create(file=('Grüße "1".jsonl', LINE), purpose="batch")
    answer = await api.http.get(f"/v1/files/{file.id}/content")
    assert file.filename == 'Grüße "1".jsonl'
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"Gr__e _1_.jsonl\"; filename*=UTF-8''Gr%C3%BC%C3%9Fe%20%221%22.jsonl"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", 'filename="_.._etc_passwd"'),
        ("..\\..\\win.ini", 'filename="_.._win.ini"'),
        (".hidden", 'filename="hidden"'),
        ("a\r\nSet-Cookie: x=1", 'filename="aSet-Cookie: x=1"'),
        ("cod\u202elnosj.exe", 'filename="codlnosj.exe"'),
        ("100%41.jsonl", "filename=\"100_41.jsonl\"; filename*=UTF-8''100%2541.jsonl"),
        ("...", 'filename="file"'),
    ],
)
async def test_a_file_name_is_sent_without_path_and_invisible_characters(
    api: ApiFixture, name: str, shown: str
) -> None:
    file = await api.upload()
    row = api.database.rows.files["default", file.id]
    api.database.rows.files["default", file.id] = row.model_copy(update={"filename": name})
    answer = await api.http.get(f"/v1/files/{file.id}/content")
    assert answer.headers["content-disposition"] == f"attachment; {shown}"


@pytest.mark.parametrize("weak", [True, False])
async def test_a_range_needs_the_strong_tag_of_this_version(api: ApiFixture, weak: bool) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    tag = ("W/" if weak else "") + f'"{file.id}"'
    headers = {"Range": "bytes=0-1", "If-Range": tag}
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers=headers)
    assert answer.status_code == (200 if weak else 206)


@pytest.mark.parametrize(
    ("requested", "got"),
    [
        ("bytes=0-3", "0-3"),
        ("bytes=4-", "4-9"),
        ("bytes=-3", "7-9"),
        ("bytes=-99", "0-9"),
        ("bytes=8-99", "8-9"),
        ("bytes=9-9", "9-9"),
        ("Bytes=0-0", "0-0"),
        ("bytes=9-18446744073709551616", "9-9"),
        ("bytes=-18446744073709551616", "0-9"),
    ],
)
async def test_a_range_returns_its_bytes(api: ApiFixture, requested: str, got: str) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers={"Range": requested})
    first, _, last = got.partition("-")
    assert (answer.status_code, answer.headers["content-range"]) == (206, f"bytes {got}/10")
    assert answer.content == b"0123456789"[int(first) : int(last) + 1]
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize(
    "requested", ["bytes=10-", "bytes=99-100", "bytes=-0", "bytes=18446744073709551616-"]
)
async def test_a_range_outside_the_file_is_refused(api: ApiFixture, requested: str) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers={"Range": requested})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    assert error_of(answer).type == "invalid_request_error"


@pytest.mark.parametrize("requested", ["bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=-", "bytes=a-b"])
async def test_an_invalid_range_is_ignored(api: ApiFixture, requested: str) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers={"Range": requested})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


@pytest.mark.parametrize("requested", ["bytes=0-3", "bytes=99-"])
async def test_a_head_request_ignores_a_range(api: ApiFixture, requested: str) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    answer = await api.http.head(f"/v1/files/{file.id}/content", headers={"Range": requested})
    assert (answer.status_code, answer.headers["content-length"]) == (200, "10")
    assert "content-range" not in answer.headers


@pytest.mark.parametrize("known", ['"{id}-gzip"', 'W/"{id}"', "Fri, 27 Nov 2026 12:00:00 GMT"])
async def test_a_range_of_compressed_content_or_of_a_date_is_ignored(api: ApiFixture, known: str) -> None:
    """The bytes that the client already has may be those of another form of the content, such as the
    compressed one.
    """
    file = await api.upload(b"0" * 10_000, purpose="user_data")
    headers = {"Range": "bytes=5-", "If-Range": known.format(id=file.id), "Accept-Encoding": "gzip"}
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers=headers)
    assert (answer.status_code, answer.headers.get("content-encoding")) == (200, None)
    assert answer.content == b"0" * 10_000


async def test_a_range_of_another_version_is_ignored(api: ApiFixture) -> None:
    file = await api.upload(b"0123456789", purpose="user_data")
    headers = {"Range": "bytes=0-1", "If-Range": '"other"'}
    assert (await api.http.get(f"/v1/files/{file.id}/content", headers=headers)).status_code == 200


async def test_an_empty_file_has_empty_content(api: ApiFixture) -> None:
    file = await api.upload(b"", purpose="user_data")
    answer = await api.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, answer.headers["content-length"]) == (200, "0")


async def test_a_missing_object_is_an_error_and_not_an_empty_file(api: ApiFixture) -> None:
    file = await api.upload()
    api.storage.objects.clear()
    answer = await api.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, error_of(answer).code) == (500, "content_missing")
