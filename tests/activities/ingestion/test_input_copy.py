"""Inputs that batches name by reference: ingestion copies the object, or the batch fails with the reason."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.terms import BatchStatus
from batchwright.rules.input.compression import zstd
from batchwright.storage.base import ObjectWriter, StorageUnavailable
from tests.activities.ingestion.fresh_batch import FILE_ID, TENANT, FreshBatch, a_line
from tests.fakes.data_bucket import DataBucket, data_bucket
from tests.fakes.s3 import S3Server
from tests.fakes.s3_proxy import Seen

pytestmark = pytest.mark.integration

LINES = b"\n".join([a_line("1"), a_line("2"), a_line("3")]) + b"\n"
MIB = 1024 * 1024


class Source(DataBucket):
    """A bucket with objects of the tenant, and the batches that name them."""

    def batch(self, url: str, **settings: object) -> FreshBatch:
        """Return a batch that names the object `url` as its input. `settings` are those of its ingestion."""
        batch = FreshBatch(**self.settings(TENANT) | settings)  # pyright: ignore[reportArgumentType]
        batch.order = batch.order.model_copy(update={"input_location": url})
        return batch


@pytest.fixture
async def source(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Source]:
    async with data_bucket(moto, monkeypatch) as bucket:
        yield Source(moto, bucket.proxy)


async def refused(batch: FreshBatch) -> tuple[str, str]:
    """Ingest a batch that fails. Check that it left nothing behind, and return the code and the message."""
    assert (await batch.ingest()).failed
    row = await batch.row()
    (error,) = row.errors
    assert (row.status, error.param) == (BatchStatus.FAILED, "input_file_id")
    assert (batch.storage.objects, await batch.database.files.get(TENANT, FILE_ID)) == ({}, None)
    return error.code, error.message


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.jsonl", LINES),
        ("day=1/in.jsonl.gz", gzip.compress(LINES)),
        ("in.jsonl.zst", zstd.compress(LINES)),
    ],
    ids=["plain", "gzip", "zstd"],
)
async def test_a_referenced_input_is_copied_and_ingested(source: Source, name: str, data: bytes) -> None:
    batch = source.batch(await asyncio.to_thread(source.put, name, data))
    result = await batch.ingest()
    assert [error.message for error in (await batch.row()).errors] == []
    assert result.total == 3
    file = await batch.database.files.get(TENANT, FILE_ID)
    assert file is not None
    assert (file.bytes, batch.storage.objects[file.storage_key]) == (len(LINES), LINES)
    assert file.filename == name.rpartition("/")[2].replace("ü b", "b").removesuffix(".gz").removesuffix(
        ".zst"
    )
    assert file.expires_at == file.created_at + timedelta(days=30)


async def test_the_copy_is_read_even_if_the_object_is_gone_at_the_next_attempt(source: Source) -> None:
    batch = source.batch(await asyncio.to_thread(source.put, "in.jsonl", LINES))
    assert (await batch.ingest()).total == 3
    source.proxy.refuses = (404, "NoSuchKey")
    assert (await batch.ingest()).total == 3


async def test_an_object_that_does_not_exist_fails_the_batch(source: Source) -> None:
    code, message = await refused(source.batch(source.location + "in.jsonl"))
    assert (code, f"There is no object '{source.location}in.jsonl'" in message) == ("input_not_found", True)


async def test_an_object_that_is_replaced_while_it_is_read_fails_the_batch(source: Source) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl", LINES + b" " * 3 * MIB)

    def replace(seen: Seen) -> None:
        if len(source.proxy.requests("GET")) == 2:
            source.put("in.jsonl", LINES + b"\n" * 3 * MIB)

    source.proxy.on_request = replace
    source.proxy.cut("GET", after=MIB + 1000)
    code, message = await refused(source.batch(url))
    assert (code, "was replaced while it was read" in message) == ("input_changed", True)


async def test_a_location_that_is_no_longer_allowed_is_not_read(source: Source) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl", LINES)
    here = [source.location]
    for locations in (
        {},
        {"another": {"read": here}},
        {TENANT: {"read": [f"{source.location}in"]}},
        {TENANT: {"write": here}},
    ):
        assert (await refused(source.batch(url, data_locations=locations)))[0] == "location_not_allowed"
    assert source.proxy.seen == []


async def test_an_object_that_is_too_large_is_not_copied(source: Source) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl.gz", gzip.compress(bytes(200 * MIB), 1))
    code, message = await refused(source.batch(url, max_batch_file_bytes=MIB))
    assert (code, f"at most {MIB} bytes" in message) == ("input_too_large", True)


async def test_an_object_that_is_too_large_as_it_is_fails_before_it_is_expanded(source: Source) -> None:
    empty = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * MIB  # blocks without bytes
    url = await asyncio.to_thread(source.put, "in.jsonl.gz", empty)
    code, message = await refused(source.batch(url, max_batch_file_bytes=MIB))
    assert (code, f"at most {MIB} bytes" in message) == ("input_too_large", True)


async def test_an_object_of_empty_members_fails_the_batch(source: Source) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl.zst", bytes.fromhex("502a4d1800000000") * 2_000)
    code, message = await refused(source.batch(url))
    assert (code, "compress it again as a whole" in message) == ("damaged_archive", True)


async def test_a_cut_archive_fails_the_batch_with_its_place(source: Source) -> None:
    packed = gzip.compress(LINES)[:-3]
    url = await asyncio.to_thread(source.put, "in.jsonl.gz", packed)
    code, message = await refused(source.batch(url))
    assert (code, f"within the first {len(packed)} bytes" in message) == ("damaged_archive", True)


async def test_the_copy_counts_for_the_storage_quota(source: Source) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl", LINES)
    code, message = await refused(source.batch(url, max_stored_bytes=len(LINES) - 1))
    assert (code, f"{len(LINES) - 1} bytes that it may store" in message) == ("storage_quota_exceeded", True)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
async def test_a_copy_that_does_not_fit_the_quota_is_not_written(
    source: Source, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    url = await asyncio.to_thread(source.put, "in.jsonl", pack(LINES + bytes(8 * MIB)))
    batch, written = source.batch(url, max_stored_bytes=3 * MIB), list[int]()
    open_writer = batch.storage.writer

    @asynccontextmanager
    async def writer(key: str) -> AsyncGenerator[ObjectWriter]:
        async with open_writer(key) as inner:
            write = inner.write

            async def counted(data: bytes | bytearray | memoryview) -> None:
                written.append(len(data))
                await write(data)

            monkeypatch.setattr(inner, "write", counted)
            yield inner

    monkeypatch.setattr(batch.storage, "writer", writer)
    code, message = await refused(batch)
    assert (code, f"{3 * MIB} bytes that it may store" in message) == ("storage_quota_exceeded", True)
    assert sum(written) <= (0 if pack is bytes else 3 * MIB)


@pytest.mark.parametrize(
    ("status", "refusal", "remedy"),
    [
        (403, "AccessDenied", "allow s3:GetObject on it, s3:ListBucket on its bucket"),
        (403, "InvalidObjectState", "it is archived: restore it first"),
        (400, "InvalidRequest", "a key that each request must contain (SSE-C)"),
        (400, "KMS.DisabledException", "check that the KMS key exists and is enabled"),
        (404, "NoSuchBucket", "there is no such bucket"),
    ],
)
async def test_an_object_that_s3_refuses_to_return_fails_the_batch(
    source: Source, status: int, refusal: str, remedy: str
) -> None:
    source.proxy.refuses = (status, refusal)
    code, message = await refused(source.batch(source.location + "in.jsonl"))
    assert (code, len(source.proxy.requests("GET"))) == ("input_unreadable", 1)
    assert message.startswith(f"S3 refuses to return '{source.location}in.jsonl': ")
    assert message.endswith(f"({refusal}).")
    assert remedy in message


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (403, "InvalidAccessKeyId"),
        (400, "ExpiredToken"),
        (400, "AuthorizationHeaderMalformed"),
        (400, "RequestTimeout"),
        (503, "SlowDown"),
    ],
)
async def test_a_server_that_does_not_respond_or_refuses_the_credentials_is_retried(
    source: Source, monkeypatch: pytest.MonkeyPatch, status: int, refusal: str
) -> None:
    monkeypatch.setattr("batchwright.storage.s3.storage._PATIENCE_SECONDS", 0.0)
    batch = source.batch(await asyncio.to_thread(source.put, "in.jsonl", LINES))
    source.proxy.refuses = (status, refusal)
    with pytest.raises(ApplicationError, match=refusal) as failed:
        await batch.ingest()
    assert failed.value.type == StorageUnavailable.__name__
    source.proxy.refuses = None
    assert (await batch.ingest()).total == 3
