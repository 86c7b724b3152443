"""Failures that only S3 has: throttling, broken connections, lost responses, and foreign objects."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from batchwright.storage.base import ObjectMissing, StorageError, StorageFull, StorageUnavailable
from tests.fakes.s3 import S3Server
from tests.integration.storage.s3_fixture import MIB, PART, S3Fixture, opened, other, write

CREATE = "POST uploads"


@pytest.fixture
async def storage_fixture(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[S3Fixture, None]:
    async with opened(s3, monkeypatch) as storage_fixture:
        yield storage_fixture


async def test_a_small_object_is_one_request(storage_fixture: S3Fixture) -> None:
    await write(storage_fixture.storage, "a", b"x" * 1000)
    await storage_fixture.storage.put("b", b"y")
    assert [seen.what for seen in storage_fixture.proxy.seen] == ["PUT", "PUT"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests"), (400, "RequestTimeout")],
)
async def test_temporary_errors_are_retried(storage_fixture: S3Fixture, status: int, code: str) -> None:
    storage_fixture.proxy.fail("PUT", status, code, times=2)
    await storage_fixture.storage.put("a", b"x")
    storage_fixture.proxy.fail("GET", status, code, times=2)
    assert await storage_fixture.storage.get("a") == b"x"
    assert (storage_fixture.counted("store", "retry"), storage_fixture.counted("store", "success")) == (2, 1)
    assert (storage_fixture.counted("retrieve", "retry"), storage_fixture.counted("retrieve", "success")) == (
        2,
        1,
    )


async def test_a_write_that_a_proxy_answers_with_404_is_unavailable_and_not_a_missing_object(
    storage_fixture: S3Fixture,
) -> None:
    for what, data in (("PUT", b"x"), (CREATE, b"x" * PART)):
        storage_fixture.proxy.fail(what, 404, "404")
        with pytest.raises(StorageUnavailable, match="this is not an answer of S3"):
            await write(storage_fixture.storage, "a", data)
    with pytest.raises(ObjectMissing):
        await storage_fixture.storage.get("a")


async def test_retries_end_after_a_time(storage_fixture: S3Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the clock that the retries use, each attempt takes 100 seconds."""
    storage_fixture.proxy.fail("PUT", 503, "SlowDown", times=10_000)
    clock = SimpleNamespace(monotonic=lambda: 100.0 * len(storage_fixture.proxy.requests("PUT")))
    monkeypatch.setattr("tenacity.time", clock)
    async with other(storage_fixture, patience_seconds=250) as storage:
        with pytest.raises(StorageUnavailable, match=r"Cannot write 'a' in s3://.*503 SlowDown \(Told to\)"):
            await storage.put("a", b"x")
    assert len(storage_fixture.proxy.requests("PUT")) == 3


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (404, "NoSuchBucket", "create it, or correct BATCHWRIGHT_STORAGE"),
        (403, "AccessDenied", "allow s3:GetObject"),
        (403, "InvalidAccessKeyId", "correct AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "correct AWS_ACCESS_KEY_ID"),
        (400, "ExpiredToken", "have expired: renew them"),
        (400, "AuthorizationHeaderMalformed", "correct BATCHWRIGHT_S3_REGION"),
        (403, "RequestTimeTooSkewed", "correct this machine's"),
        (400, "KMS.NotFoundException", "correct BATCHWRIGHT_S3_SSE_KMS_KEY_ID"),
        (501, "NotImplemented", "check BATCHWRIGHT_S3_SSE"),
    ],
)
async def test_permanent_errors_are_reported_at_once_with_the_remedy(
    storage_fixture: S3Fixture, status: int, code: str, remedy: str
) -> None:
    storage_fixture.proxy.fail("PUT", status, code, times=100)
    with pytest.raises(StorageUnavailable, match=remedy):
        await storage_fixture.storage.put("a", b"x")
    with pytest.raises(StorageUnavailable, match=remedy):
        await storage_fixture.storage.check()
    assert len(storage_fixture.proxy.requests("PUT")) == 2
    assert storage_fixture.counted("store", "exhausted") == 1


async def test_a_full_storage_has_its_own_error(storage_fixture: S3Fixture) -> None:
    storage_fixture.proxy.fail("PUT", 507, "InsufficientStorage")
    with pytest.raises(StorageFull, match="raise its quota"):
        await storage_fixture.storage.put("a", b"x")


async def test_an_unreachable_endpoint_is_named(storage_fixture: S3Fixture) -> None:
    async with other(
        storage_fixture, patience_seconds=0, BATCHWRIGHT_S3_ENDPOINT_URL="http://127.0.0.1:1"
    ) as storage:
        with pytest.raises(StorageUnavailable, match=r"cannot be reached.*127.0.0.1:1.*S3_ENDPOINT_URL"):
            await storage.check()


async def test_missing_credentials_are_named(storage_fixture: S3Fixture) -> None:
    with storage_fixture.environment.context() as changed:
        changed.delenv("AWS_ACCESS_KEY_ID")
        changed.delenv("AWS_SECRET_ACCESS_KEY")
        async with other(storage_fixture) as storage:
            with pytest.raises(StorageUnavailable, match="no credentials: set AWS_ACCESS_KEY_ID"):
                await storage.check()


async def test_a_missing_profile_is_named(storage_fixture: S3Fixture) -> None:
    with pytest.raises(StorageUnavailable, match="nobody"):
        async with other(storage_fixture, AWS_PROFILE="nobody"):
            pass


@pytest.mark.parametrize("key", ["there", "not/there"])
async def test_a_missing_bucket_is_not_reported_as_missing_objects(
    storage_fixture: S3Fixture, key: str
) -> None:
    async with other(storage_fixture, BATCHWRIGHT_STORAGE="s3://batchwright-no-such-bucket") as storage:
        for call in (storage.stat(key), storage.get(key), storage.delete(key), storage.check()):
            with pytest.raises(StorageUnavailable, match="no such bucket"):
                await call


async def test_an_interrupted_read_continues_where_it_broke(storage_fixture: S3Fixture) -> None:
    data = bytes(range(256)) * (12 * 1024)
    await storage_fixture.storage.put("a", data)
    storage_fixture.proxy.cut("GET", after=MIB + 1000)
    storage_fixture.proxy.cut("GET", after=500_000)
    assert (
        b"".join([piece async for piece in storage_fixture.storage.read("a", 10, len(data) - 20)])
        == data[10:-10]
    )
    starts = [int(seen.headers["Range"][6:].split("-")[0]) for seen in storage_fixture.proxy.requests("GET")]
    assert starts[0] == 10
    assert starts == sorted(set(starts))
    assert len(starts) == 3
    assert storage_fixture.counted("retrieve", "retry") == 2


async def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(storage_fixture: S3Fixture) -> None:
    await storage_fixture.storage.put("a", b"1" * (2 * MIB))
    storage_fixture.proxy.cut("GET", after=MIB + 1000)
    reading = aiter(storage_fixture.storage.read("a"))
    assert set(await anext(reading)) == {ord("1")}
    await storage_fixture.storage.put("a", b"2" * (2 * MIB))
    with pytest.raises(StorageUnavailable, match="changed while it was read"):
        await anext(reading)


async def test_a_reader_that_stops_early_releases_its_connection(storage_fixture: S3Fixture) -> None:
    await storage_fixture.storage.put("a", b"x" * (4 * MIB))
    for _ in range(70):  # more than there are connections
        async for _ in storage_fixture.storage.read("a"):
            break
    assert (await storage_fixture.storage.stat("a")).size == 4 * MIB


async def test_prefixes_do_not_see_each_other(storage_fixture: S3Fixture, s3: S3Server) -> None:
    await storage_fixture.storage.put("a/b", b"ours")
    prefix = storage_fixture.proxy.requests("PUT")[0].key.split("/")[2]
    async with other(storage_fixture, BATCHWRIGHT_STORAGE=f"s3://{s3.bucket}/{prefix}-2") as storage:
        assert [info async for info in storage.list("")] == []
        assert await storage.delete_prefix("") == 0
        with pytest.raises(ObjectMissing):
            await storage.get("a/b")
    async with other(storage_fixture, BATCHWRIGHT_STORAGE=f"s3://{s3.bucket}/{prefix}/a/") as storage:
        assert await storage.get("b") == b"ours"


async def test_a_long_list_is_read_in_pages(storage_fixture: S3Fixture, s3: S3Server) -> None:
    keys = [f"k/{number:04d}" for number in range(s3.page + 5)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(storage_fixture.storage.put(key, b"") for key in keys[first : first + 50]))
    assert await storage_fixture.keys() == keys
    assert len(storage_fixture.proxy.requests("GET list-type")) == 2


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1"}, "eu-central-1"),
        ({"AWS_REGION": "eu-central-1", "BATCHWRIGHT_S3_REGION": "ap-south-1"}, "ap-south-1"),
    ],
)
async def test_requests_are_signed_for_the_region_of_the_settings_or_else_of_the_environment(
    storage_fixture: S3Fixture, environment: dict[str, str], region: str
) -> None:
    for name, value in environment.items():
        storage_fixture.environment.setenv(name, value)
    async with other(storage_fixture) as storage:
        with suppress(StorageError):  # a real server may serve another region
            await storage.put("a", b"x")
    signed = storage_fixture.proxy.seen[-1].headers["Authorization"]
    assert f"/{region}/s3/aws4_request" in signed


async def test_encryption_is_requested_for_every_new_object(storage_fixture: S3Fixture) -> None:
    storage_fixture.proxy.fail(
        "PUT", 500, "Stop", times=100
    )  # no server here has the key: only the asking is tested
    storage_fixture.proxy.fail(CREATE, 500, "Stop", times=100)
    chosen = {
        "BATCHWRIGHT_S3_SSE": "aws:kms",
        "BATCHWRIGHT_S3_SSE_KMS_KEY_ID": "our-key",
    }
    async with other(storage_fixture, patience_seconds=0, **chosen) as storage:
        with pytest.raises(StorageUnavailable):
            await storage.put("a", b"x")
        with pytest.raises(StorageUnavailable):
            await write(storage, "b", b"x" * PART)
    for seen in storage_fixture.proxy.seen:
        assert seen.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert seen.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "our-key"
    assert [seen.what for seen in storage_fixture.proxy.seen] == ["PUT", CREATE]


async def test_the_first_check_writes_an_object_and_later_ones_only_list(storage_fixture: S3Fixture) -> None:
    await storage_fixture.storage.check()
    await storage_fixture.storage.check()
    assert [seen.what for seen in storage_fixture.proxy.seen] == ["PUT", "GET", "DELETE", "GET list-type"]


async def test_a_check_tries_once(storage_fixture: S3Fixture) -> None:
    storage_fixture.proxy.fail("PUT", 503, "SlowDown")
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        await storage_fixture.storage.check()
    await storage_fixture.storage.check()
    assert storage_fixture.counted("store", "retry") == 0
