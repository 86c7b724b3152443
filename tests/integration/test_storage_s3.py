"""What only S3 can do wrong: throttling, broken connections, lost answers, strangers in the bucket."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from batchwright.storage.base import ObjectMissing, StorageFull, StorageUnavailable
from tests.fakes.s3 import S3Server
from tests.integration.s3_house import MIB, PART, House, opened, other, write

CREATE = "POST uploads"


@pytest.fixture
async def house(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[House, None]:
    async with opened(s3, monkeypatch) as house:
        yield house


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
