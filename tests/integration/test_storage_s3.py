"""What only S3 can do wrong: throttling, broken connections, lost answers, strangers in the bucket."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from batchwright.settings import load
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage, StorageFull, StorageUnavailable
from batchwright.storage.observed import Component
from batchwright.storage.opening import open_storage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.fakes.s3_proxy import S3Proxy, proxied

MIB = 1024 * 1024
PART = 8 * MIB
CREATE, PART_PUT, COMPLETE, ABORT = "POST uploads", "PUT uploadId", "POST uploadId", "DELETE uploadId"
NOW = timedelta(0)
AN_AGE = timedelta(days=30 * 365)  # moto says of every upload that it began in 2010


@dataclass
class House:
    storage: Storage
    proxy: S3Proxy
    metrics: Metrics
    environment: pytest.MonkeyPatch

    def counted(self, operation: str, status: str) -> float:
        labels = {"operation": operation, "component": "processor", "status": status}
        found = self.metrics.registry.get_sample_value("batchwright_file_storage_operations_total", labels)
        return found or 0

    async def keys(self) -> list[str]:
        return [info.key async for info in self.storage.list("")]


@pytest.fixture
async def house(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[House, None]:
    async with proxied(s3.url) as proxy:
        for name, value in s3.settings(fresh_prefix(), proxy.url).items():
            monkeypatch.setenv(name, value)
        metrics = Metrics()
        async with open_storage(load(), metrics, Component.WORKER) as storage:
            yield House(storage, proxy, metrics, monkeypatch)
            proxy.faults.clear()
            await storage.delete_prefix("")
            await storage.sweep(NOW)


@asynccontextmanager
async def other(house: House, **environment: str) -> AsyncGenerator[Storage, None]:
    """A storage in another process's eyes: the same proxy, other settings."""
    with house.environment.context() as changed:
        for name, value in environment.items():
            changed.setenv(name, value)
        async with open_storage(load(), Metrics(), Component.WORKER) as storage:
            yield storage


async def write(storage: Storage, key: str, *pieces: bytes) -> None:
    async with storage.writer(key) as writer:
        for piece in pieces:
            await writer.write(piece)


async def break_off(storage: Storage, key: str) -> None:
    """After a part has been sent."""
    async with storage.writer(key) as writer:
        await writer.write(b"x" * PART)
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("size", "parts"), [(PART - 1, 0), (PART, 1), (PART + 1, 2), (2 * PART, 2), (3 * PART + 7, 4)]
)
async def test_a_large_object_goes_out_in_equal_parts(house: House, size: int, parts: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    await write(house.storage, "a", data[: size // 3], data[size // 3 : size])
    assert len(house.proxy.requests(PART_PUT)) == parts
    assert await house.storage.stat("a") == ObjectInfo("a", size)
    assert await house.storage.get("a") == data[:size]


async def test_a_small_object_is_one_request(house: House) -> None:
    await write(house.storage, "a", b"x" * 1000)
    await house.storage.put("b", b"y")
    assert [seen.what for seen in house.proxy.seen] == ["PUT", "PUT"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests"), (400, "RequestTimeout")],
)
async def test_what_passes_is_tried_again(house: House, status: int, code: str) -> None:
    house.proxy.fail("PUT", status, code, times=2)
    await house.storage.put("a", b"x")
    house.proxy.fail("GET", status, code, times=2)
    assert await house.storage.get("a") == b"x"
    assert (house.counted("store", "retry"), house.counted("store", "success")) == (2, 1)
    assert (house.counted("retrieve", "retry"), house.counted("retrieve", "success")) == (2, 1)


async def test_patience_ends_and_is_counted(house: House) -> None:
    house.proxy.fail("PUT", 503, "SlowDown", times=10_000)
    async with other(house, BATCHWRIGHT_STORAGE_PATIENCE_SECONDS="3") as storage:
        with pytest.raises(StorageUnavailable, match=r"Cannot write 'a' in s3://.*503 SlowDown \(Told to\)"):
            await storage.put("a", b"x")
    assert len(house.proxy.requests("PUT")) > 1


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (404, "NoSuchBucket", "create it, or correct BATCHWRIGHT_STORAGE"),
        (403, "AccessDenied", "allow s3:GetObject"),
        (403, "InvalidAccessKeyId", "correct AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "correct AWS_ACCESS_KEY_ID"),
        (400, "ExpiredToken", "have expired: renew them"),
        (400, "AuthorizationHeaderMalformed", "correct BATCHWRIGHT_S3_REGION"),
        (403, "RequestTimeTooSkewed", "set this machine's"),
        (400, "KMS.NotFoundException", "correct BATCHWRIGHT_S3_SSE_KMS_KEY_ID"),
        (501, "NotImplemented", "BATCHWRIGHT_S3_SSE may ask too much"),
    ],
)
async def test_what_no_retry_mends_is_said_at_once_with_the_remedy(
    house: House, status: int, code: str, remedy: str
) -> None:
    house.proxy.fail("PUT", status, code, times=100)
    with pytest.raises(StorageUnavailable, match=remedy):
        await house.storage.put("a", b"x")
    with pytest.raises(StorageUnavailable, match=remedy):
        await house.storage.check()
    assert len(house.proxy.requests("PUT")) == 2
    assert house.counted("store", "exhausted") == 1


async def test_a_full_storage_is_told_apart(house: House) -> None:
    house.proxy.fail("PUT", 507, "InsufficientStorage")
    with pytest.raises(StorageFull, match="raise its quota"):
        await house.storage.put("a", b"x")


async def test_an_endpoint_that_is_not_there_is_named(house: House) -> None:
    gone = {"BATCHWRIGHT_S3_ENDPOINT_URL": "http://127.0.0.1:1", "BATCHWRIGHT_STORAGE_PATIENCE_SECONDS": "0"}
    async with other(house, **gone) as storage:
        with pytest.raises(StorageUnavailable, match=r"cannot be reached.*127.0.0.1:1.*S3_ENDPOINT_URL"):
            await storage.check()


async def test_missing_credentials_are_named(house: House) -> None:
    with house.environment.context() as changed:
        changed.delenv("AWS_ACCESS_KEY_ID")
        changed.delenv("AWS_SECRET_ACCESS_KEY")
        async with other(house) as storage:
            with pytest.raises(StorageUnavailable, match="no credentials: set AWS_ACCESS_KEY_ID"):
                await storage.check()


async def test_a_profile_that_is_not_there_is_named(house: House) -> None:
    with pytest.raises(StorageUnavailable, match="nobody"):
        async with other(house, AWS_PROFILE="nobody"):
            pass


@pytest.mark.parametrize("key", ["there", "not/there"])
async def test_a_bucket_that_is_gone_does_not_call_its_objects_missing(house: House, key: str) -> None:
    async with other(house, BATCHWRIGHT_STORAGE="s3://batchwright-no-such-bucket") as storage:
        for call in (storage.stat(key), storage.get(key), storage.delete(key), storage.check()):
            with pytest.raises(StorageUnavailable, match="no such bucket"):
                await call


async def test_a_read_that_breaks_goes_on_where_it_broke(house: House) -> None:
    data = bytes(range(256)) * (12 * 1024)
    await house.storage.put("a", data)
    house.proxy.cut("GET", after=MIB + 1000)
    house.proxy.cut("GET", after=500_000)
    assert b"".join([piece async for piece in house.storage.read("a", 10, len(data) - 20)]) == data[10:-10]
    starts = [int(seen.headers["Range"][6:].split("-")[0]) for seen in house.proxy.requests("GET")]
    assert starts[0] == 10
    assert starts == sorted(set(starts))
    assert len(starts) == 3
    assert house.counted("retrieve", "retry") == 2


async def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(house: House) -> None:
    await house.storage.put("a", b"1" * (2 * MIB))
    house.proxy.cut("GET", after=MIB + 1000)
    reading = aiter(house.storage.read("a"))
    assert set(await anext(reading)) == {ord("1")}
    await house.storage.put("a", b"2" * (2 * MIB))
    with pytest.raises(StorageUnavailable, match="changed while it was read"):
        await anext(reading)


async def test_a_reader_that_leaves_gives_its_connection_back(house: House) -> None:
    await house.storage.put("a", b"x" * (4 * MIB))
    for _ in range(70):  # more than there are connections
        async for _ in house.storage.read("a"):
            break
    assert (await house.storage.stat("a")).size == 4 * MIB


async def test_a_part_that_fails_in_passing_is_sent_again(house: House) -> None:
    house.proxy.fail(PART_PUT, 503, "SlowDown")
    house.proxy.lose_answer(PART_PUT)
    data = b"abcdefgh" * MIB + b"end"
    await write(house.storage, "a", data)
    assert await house.storage.get("a") == data
    assert len(house.proxy.requests(PART_PUT)) == 4


async def test_a_part_that_fails_for_good_leaves_nothing(house: House) -> None:
    house.proxy.fail(PART_PUT, 403, "AccessDenied")
    with pytest.raises(StorageUnavailable, match="access is denied"):
        await write(house.storage, "a", b"x" * (3 * PART))
    assert len(house.proxy.requests(ABORT)) == 1
    assert await house.keys() == []
    assert await house.storage.sweep(NOW) == 0


async def test_a_completion_whose_answer_is_lost_is_known_by_the_object(house: House) -> None:
    await house.storage.put("a", b"of another writer")
    house.proxy.lose_answer(COMPLETE)
    await write(house.storage, "a", b"x" * (PART + 1))
    assert (await house.storage.stat("a")).size == PART + 1
    assert house.counted("store", "exhausted") == 0


async def test_an_object_of_another_writer_is_not_taken_for_a_completion(house: House) -> None:
    await house.storage.put("a", b"of another writer")
    house.proxy.fail(COMPLETE, 404, "NoSuchUpload")
    with pytest.raises(StorageUnavailable, match="somebody ended the upload"):
        await write(house.storage, "a", b"x" * (PART + 1))
    assert await house.storage.get("a") == b"of another writer"


async def test_an_error_in_an_answer_of_status_200_is_an_error(house: House) -> None:
    """S3 begins to answer a completion before it knows how it ends."""
    house.proxy.fail(COMPLETE, 200, "InternalError")
    await write(house.storage, "a", b"x" * (PART + 1))
    assert len(house.proxy.requests(COMPLETE)) == 2
    assert (await house.storage.stat("a")).size == PART + 1


async def test_a_cancelled_writer_leaves_nothing(house: House) -> None:
    begun = asyncio.Event()
    house.proxy.on_request = lambda seen: begun.set() if seen.what == PART_PUT else None

    async def write_for_ever() -> None:
        async with house.storage.writer("a") as writer:
            while True:
                await writer.write(b"x" * MIB)

    writing = asyncio.create_task(write_for_ever())
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert len(house.proxy.requests(ABORT)) == 1
    assert await house.keys() == []
    assert await house.storage.sweep(NOW) == 0


async def test_many_writers_have_few_parts_on_their_way_and_all_finish(house: House) -> None:
    writers = [write(house.storage, f"a/{number}", b"x" * (2 * PART + number)) for number in range(6)]
    await asyncio.gather(*writers)
    sizes = [info.size async for info in house.storage.list("a/")]
    assert sizes == [2 * PART + number for number in range(6)]


async def test_an_upload_that_cannot_be_ended_is_left_to_the_sweep(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.proxy.fail(ABORT, 403, "AccessDenied")
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        await break_off(house.storage, "a")
    assert "an unfinished upload is left to the sweep" in caplog.messages
    assert await house.storage.sweep(AN_AGE) == 0
    assert await house.storage.sweep(NOW) == 1
    assert await house.storage.sweep(NOW) == 0


async def test_a_sweep_stays_below_its_prefix(house: House, s3: S3Server) -> None:
    house.proxy.fail(ABORT, 403, "AccessDenied")
    neighbour = f"s3://{s3.bucket}/{fresh_prefix()}"
    async with other(house, BATCHWRIGHT_STORAGE=neighbour) as storage:
        with pytest.raises(ZeroDivisionError):
            await break_off(storage, "a")
        assert await house.storage.sweep(NOW) == 0
        assert await storage.sweep(NOW) == 1


async def test_prefixes_do_not_see_each_other(house: House, s3: S3Server) -> None:
    await house.storage.put("a/b", b"ours")
    prefix = house.proxy.requests("PUT")[0].key.split("/")[2]
    async with other(house, BATCHWRIGHT_STORAGE=f"s3://{s3.bucket}/{prefix}-2") as storage:
        assert [info async for info in storage.list("")] == []
        assert await storage.delete_prefix("") == 0
        with pytest.raises(ObjectMissing):
            await storage.get("a/b")
    async with other(house, BATCHWRIGHT_STORAGE=f"s3://{s3.bucket}/{prefix}/a/") as storage:
        assert await storage.get("b") == b"ours"


async def test_a_long_list_comes_in_pages(house: House, s3: S3Server) -> None:
    keys = [f"k/{number:04d}" for number in range(s3.page + 5)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(house.storage.put(key, b"") for key in keys[first : first + 50]))
    assert await house.keys() == keys
    assert len(house.proxy.requests("GET list-type")) == 2


async def test_encryption_is_asked_for_with_every_new_object(house: House) -> None:
    house.proxy.fail("PUT", 500, "Stop", times=100)  # no server here has the key: only the asking is tested
    house.proxy.fail(CREATE, 500, "Stop", times=100)
    chosen = {
        "BATCHWRIGHT_S3_SSE": "aws:kms",
        "BATCHWRIGHT_S3_SSE_KMS_KEY_ID": "our-key",
        "BATCHWRIGHT_STORAGE_PATIENCE_SECONDS": "0",
    }
    async with other(house, **chosen) as storage:
        with pytest.raises(StorageUnavailable):
            await storage.put("a", b"x")
        with pytest.raises(StorageUnavailable):
            await write(storage, "b", b"x" * PART)
    for seen in house.proxy.seen:
        assert seen.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert seen.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "our-key"
    assert [seen.what for seen in house.proxy.seen] == ["PUT", CREATE]


async def test_a_check_writes_at_first_and_then_only_lists(house: House) -> None:
    await house.storage.check()
    await house.storage.check()
    assert [seen.what for seen in house.proxy.seen] == ["PUT", "GET", "DELETE", "GET list-type"]


async def test_a_check_tries_once(house: House) -> None:
    house.proxy.fail("PUT", 503, "SlowDown")
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        await house.storage.check()
    await house.storage.check()
    assert house.counted("store", "retry") == 0
