"""/v1/files/{file_id}/content: whole, in ranges, under what name."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import LINE, House, error_of, open_house


@pytest.fixture
async def house() -> AsyncGenerator[House]:
    async with open_house() as house:
        yield house


async def test_content_comes_whole_with_its_name_and_tag(house: House) -> None:
    file = await house.upload(LINE * 3)
    answer = await house.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, answer.content) == (200, LINE * 3)
    assert answer.headers["content-length"] == str(len(LINE) * 3)
    assert answer.headers["content-disposition"] == 'attachment; filename="input.jsonl"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["cache-control"] == "private, no-cache"
    for known in (f'W/"other", {answer.headers["etag"]}', "W/" + answer.headers["etag"], "*"):
        again = {"If-None-Match": known}
        assert (await house.http.get(f"/v1/files/{file.id}/content", headers=again)).status_code == 304


async def test_a_name_beyond_ascii_survives_in_both_directions(house: House) -> None:
    file = await house.openai.files.create(file=('Grüße "1".jsonl', LINE), purpose="batch")
    answer = await house.http.get(f"/v1/files/{file.id}/content")
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
async def test_a_name_is_shown_as_no_path_and_nothing_hidden(house: House, name: str, shown: str) -> None:
    file = await house.upload()
    row = house.database.rows.files["default", file.id]
    house.database.rows.files["default", file.id] = row.model_copy(update={"filename": name})
    answer = await house.http.get(f"/v1/files/{file.id}/content")
    assert answer.headers["content-disposition"] == f"attachment; {shown}"


@pytest.mark.parametrize("weak", [True, False])
async def test_a_range_needs_the_strong_tag_of_this_version(house: House, weak: bool) -> None:
    file = await house.upload(b"0123456789", purpose="user_data")
    tag = ("W/" if weak else "") + f'"{file.id}"'
    headers = {"Range": "bytes=0-1", "If-Range": tag}
    answer = await house.http.get(f"/v1/files/{file.id}/content", headers=headers)
    assert answer.status_code == (200 if weak else 206)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("bytes=0-3", "0-3"),
        ("bytes=4-", "4-9"),
        ("bytes=-3", "7-9"),
        ("bytes=-99", "0-9"),
        ("bytes=8-99", "8-9"),
        ("bytes=9-9", "9-9"),
        ("bytes=9-18446744073709551616", "9-9"),
        ("bytes=-18446744073709551616", "0-9"),
    ],
)
async def test_a_range_gives_those_bytes(house: House, asked: str, got: str) -> None:
    file = await house.upload(b"0123456789", purpose="user_data")
    answer = await house.http.get(f"/v1/files/{file.id}/content", headers={"Range": asked})
    first, _, last = got.partition("-")
    assert (answer.status_code, answer.headers["content-range"]) == (206, f"bytes {got}/10")
    assert answer.content == b"0123456789"[int(first) : int(last) + 1]
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=99-100", "bytes=-0", "bytes=18446744073709551616-"])
async def test_a_range_outside_the_file_is_refused(house: House, asked: str) -> None:
    file = await house.upload(b"0123456789", purpose="user_data")
    answer = await house.http.get(f"/v1/files/{file.id}/content", headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    assert error_of(answer).type == "invalid_request_error"


@pytest.mark.parametrize("asked", ["bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=-", "bytes=a-b"])
async def test_a_range_that_says_nothing_is_ignored(house: House, asked: str) -> None:
    file = await house.upload(b"0123456789", purpose="user_data")
    answer = await house.http.get(f"/v1/files/{file.id}/content", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


async def test_a_range_of_another_version_is_ignored(house: House) -> None:
    file = await house.upload(b"0123456789", purpose="user_data")
    headers = {"Range": "bytes=0-1", "If-Range": '"other"'}
    assert (await house.http.get(f"/v1/files/{file.id}/content", headers=headers)).status_code == 200


async def test_an_empty_file_has_empty_content(house: House) -> None:
    file = await house.upload(b"", purpose="user_data")
    answer = await house.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, answer.headers["content-length"]) == (200, "0")


async def test_content_that_is_lost_is_an_error_and_not_an_empty_file(house: House) -> None:
    file = await house.upload()
    house.storage.objects.clear()
    answer = await house.http.get(f"/v1/files/{file.id}/content")
    assert (answer.status_code, error_of(answer).code) == (500, "content_missing")
