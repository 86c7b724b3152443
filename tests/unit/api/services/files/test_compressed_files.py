"""Compressed uploads are stored expanded, and downloads are compressed if the client accepts it."""

import gzip
import hashlib
import tracemalloc
from collections.abc import AsyncGenerator

import pytest

from batchwright.api.services.compressed_response import encoded
from batchwright.rules.input.compression import zstd
from tests.fakes.api import LINE, ApiFixture, error_of, open_api
from tests.unit.api.routes.test_uploads import complete, created, part

LINES = LINE * 2000
PACKED = {"gzip": gzip.compress(LINES), "zstd": zstd.compress(LINES)}
ENDINGS = {"gzip": "gz", "zstd": "zst"}
FORMATS = pytest.mark.parametrize("format", ["gzip", "zstd"])


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def left(api: ApiFixture) -> int:
    return len(api.storage.objects) + len(api.database.rows.files)


@FORMATS
async def test_a_compressed_input_is_stored_expanded(api: ApiFixture, format: str) -> None:
    name = f"in.jsonl.{ENDINGS[format]}"
    file = await api.openai.files.create(file=(name, PACKED[format]), purpose="batch")
    assert (file.bytes, file.filename) == (len(LINES), "in.jsonl")
    assert list(api.storage.objects.values()) == [LINES]
    assert (await api.openai.files.content(file.id)).content == LINES


async def test_a_file_of_another_purpose_stays_compressed(api: ApiFixture) -> None:
    file = await api.openai.files.create(file=("in.jsonl.gz", PACKED["gzip"]), purpose="user_data")
    assert (file.bytes, file.filename) == (len(PACKED["gzip"]), "in.jsonl.gz")
    assert list(api.storage.objects.values()) == [PACKED["gzip"]]


async def test_the_purpose_may_follow_the_file_only_if_the_file_is_expanded(api: ApiFixture) -> None:
    for purpose, status in (("batch", 200), ("user_data", 400)):
        form = {"file": ("a.gz", PACKED["gzip"]), "purpose": (None, purpose)}
        answer = await api.http.post("/v1/files", files=form)
        assert answer.status_code == status
    assert (error_of(answer).param, left(api)) == ("purpose", 2)
    assert "before the file" in error_of(answer).message


async def test_the_strict_profile_refuses_compressed_files_as_openai_does() -> None:
    async with open_api(profile="strict") as api:
        answer = await api.http.post(
            "/v1/files", files={"file": ("in.jsonl.gz", PACKED["gzip"])}, data={"purpose": "batch"}
        )
        assert (answer.status_code, left(api)) == (400, 0)
        assert error_of(answer).message == "Invalid file format for Batch API. Must be .jsonl"


@FORMATS
async def test_an_archive_that_expands_beyond_the_limit_is_refused(format: str) -> None:
    bomb = bytes(200 * 1024 * 1024)
    packed = gzip.compress(bomb, 1) if format == "gzip" else zstd.compress(bomb, 1)
    async with open_api(max_batch_file_bytes=1_000_000, max_file_bytes=1_000_000) as api:
        answer = await api.http.post("/v1/files", files={"file": ("a", packed)}, data={"purpose": "batch"})
        assert (answer.status_code, error_of(answer).code) == (413, "expanded_file_too_large")
        assert (error_of(answer).param, left(api)) == ("file", 0)
        assert "too large when expanded: at most 1000000 bytes" in error_of(answer).message


@pytest.mark.parametrize(
    ("empty", "format"), [(b"\0\0\0\xff\xff", "gzip"), (b"\0\0\0", "zstd")], ids=["gzip", "zstd"]
)
async def test_a_file_that_is_too_large_and_has_no_content_is_refused(empty: bytes, format: str) -> None:
    start = gzip.compress(b"")[:10] if format == "gzip" else bytes.fromhex("28b52ffd0058")
    packed = start + empty * (1_000_001 // len(empty))  # blocks without bytes
    async with open_api(max_batch_file_bytes=1_000_000, max_file_bytes=1_000_000) as api:
        answer = await api.http.post("/v1/files", files={"file": ("a", packed)}, data={"purpose": "batch"})
        assert (answer.status_code, error_of(answer).param, left(api)) == (413, "file", 0)
        assert error_of(answer).message == "The file is too large: at most 1000000 bytes are allowed."


@pytest.mark.parametrize(
    "empty", [gzip.compress(b""), bytes.fromhex("502a4d1800000000")], ids=["gzip", "zstd"]
)
async def test_a_file_of_empty_members_is_refused(api: ApiFixture, empty: bytes) -> None:
    answer = await api.http.post("/v1/files", files={"file": ("a", empty * 2_000)}, data={"purpose": "batch"})
    assert (answer.status_code, error_of(answer).code, left(api)) == (400, "damaged_archive", 0)
    assert "expand it and compress it again as a whole" in error_of(answer).message


async def test_the_expanded_size_counts_for_the_storage_quota() -> None:
    async with open_api(max_stored_bytes=len(LINES) - 1) as api:
        files = {"file": ("a", PACKED["gzip"])}
        answer = await api.http.post("/v1/files", files=files, data={"purpose": "batch"})
        assert (answer.status_code, left(api)) == (429, 0)


@FORMATS
async def test_a_cut_archive_is_refused_with_its_place(api: ApiFixture, format: str) -> None:
    packed = PACKED[format][:-3]
    answer = await api.http.post("/v1/files", files={"file": ("a", packed)}, data={"purpose": "batch"})
    error = error_of(answer)
    assert (answer.status_code, error.code, error.param) == (400, "damaged_archive", "file")
    assert (
        f"ends too early. This is within the first {len(packed)} bytes of the file, in line" in error.message
    )
    assert left(api) == 0


@pytest.mark.parametrize(
    "start", [b"\x1f", b"\x1f\x8b", b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd", gzip.compress(b"", mtime=0)]
)
async def test_a_start_without_content_is_refused(api: ApiFixture, start: bytes) -> None:
    answer = await api.http.post("/v1/files", files={"file": ("a", start)}, data={"purpose": "batch"})
    assert (answer.status_code, left(api)) == (400, 0)


async def test_a_plain_file_shorter_than_a_magic_number_is_stored(api: ApiFixture) -> None:
    assert (await api.upload(b"{}")).bytes == 2
    assert list(api.storage.objects.values()) == [b"{}"]


@FORMATS
async def test_parts_are_expanded_when_they_are_assembled(api: ApiFixture, format: str) -> None:
    packed = PACKED[format]
    upload = await created(api, bytes=len(packed), filename=f"in.jsonl.{ENDINGS[format]}")
    ids = [await part(api, upload, packed[:3]), await part(api, upload, packed[3:])]
    assert await complete(api, upload, ids, md5=hashlib.md5(packed).hexdigest()) == (200, None)
    (row,) = api.database.rows.files.values()
    assert (row.bytes, row.filename, api.storage.objects[row.storage_key]) == (len(LINES), "in.jsonl", LINES)


async def test_parts_that_expand_beyond_a_limit_leave_the_upload_open() -> None:
    packed = gzip.compress(bytes(10_000_000))
    for settings, result in (
        ({"max_batch_file_bytes": 1_000_000}, (413, "expanded_file_too_large")),
        ({"max_stored_bytes": 1_000_000}, (429, "rate_limit_exceeded")),
    ):
        async with open_api(**settings) as api:
            upload = await created(api, bytes=len(packed))
            ids = [await part(api, upload, packed)]
            assert await complete(api, upload, ids) == result
            assert (len(api.database.rows.files), len(api.storage.objects)) == (0, 1)
            assert (await api.http.post(f"/v1/uploads/{upload.id}/cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate", "gzip"),
        ("gzip, zstd", "zstd"),
        ("zstd;q=0, GZIP;q=0.5", "gzip"),
        ("gzip;q=0.0, br", None),
        ("identity", None),
        ("*", None),
        ("", None),
    ],
)
async def test_a_download_is_compressed_if_the_client_accepts_it(
    api: ApiFixture, accepted: str, encoding: str | None
) -> None:
    file = await api.upload(LINES)
    async with api.http.stream(
        "GET", f"/v1/files/{file.id}/content", headers={"Accept-Encoding": accepted}
    ) as answer:
        body = b"".join([piece async for piece in answer.aiter_raw()])
    expand = {"gzip": gzip.decompress, "zstd": zstd.decompress, None: bytes}[encoding]
    assert (answer.status_code, expand(body)) == (200, LINES)
    assert (answer.headers.get("content-encoding"), answer.headers["vary"]) == (encoding, "Accept-Encoding")
    assert answer.headers.get("content-length") == (None if encoding else str(len(LINES)))


async def test_ranges_and_sizes_are_those_of_the_expanded_file(api: ApiFixture) -> None:
    file = await api.upload(LINES)
    path, gzip_accepted = f"/v1/files/{file.id}/content", {"Accept-Encoding": "gzip"}
    head = await api.http.head(path, headers=gzip_accepted)
    assert (head.headers["content-length"], "content-encoding" in head.headers) == (str(len(LINES)), False)
    answer = await api.http.get(path, headers={**gzip_accepted, "Range": "bytes=5-9"})
    assert (answer.status_code, answer.content) == (206, LINES[5:10])
    assert "content-encoding" not in answer.headers


async def test_each_encoding_has_an_etag_of_its_own(api: ApiFixture) -> None:
    file = await api.upload(LINES)
    path, accepted = f"/v1/files/{file.id}/content", {"Accept-Encoding": "gzip"}
    tag = (await api.http.get(path, headers=accepted)).headers["etag"]
    plain = (await api.http.head(path)).headers["etag"]
    assert (tag, plain) == (f'"{file.id}-gzip"', f'"{file.id}"')
    for known in (tag, plain):
        again = await api.http.get(path, headers={**accepted, "If-None-Match": known})
        assert again.status_code == 304
    # The rest of a compressed file cannot be sent as a range of the expanded file.
    rest = await api.http.get(path, headers={"Range": "bytes=5-", "If-Range": tag})
    assert (rest.status_code, rest.content) == (200, LINES)


async def test_a_small_file_is_not_worth_compressing(api: ApiFixture) -> None:
    file = await api.upload(LINE)
    answer = await api.http.get(f"/v1/files/{file.id}/content", headers={"Accept-Encoding": "gzip"})
    assert (answer.content, "content-encoding" in answer.headers) == (LINE, False)


async def test_only_a_part_of_a_download_is_in_memory_while_its_client_does_not_read() -> None:
    async def rest() -> AsyncGenerator[bytes]:
        yield b"the last"

    tracemalloc.start()
    try:
        body = encoded(bytes(8 * 1024 * 1024), rest(), None)
        sizes = list[int]()
        while (part := await anext(body)) != b"the last":
            sizes.append(len(part))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (sum(sizes), max(sizes)) == (8 * 1024 * 1024, 128 * 1024)
    assert used < 1024 * 1024
