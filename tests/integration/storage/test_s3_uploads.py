"""Large objects on S3, which are sent in parts: repeated parts, aborted uploads, and remains of crashes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from batchwright.storage.base import ObjectInfo, Storage, StorageUnavailable
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.integration.storage.s3_fixture import MIB, NOW, PART, S3Fixture, opened, other, write

PART_PUT, COMPLETE, ABORT = "PUT uploadId", "POST uploadId", "DELETE uploadId"
AN_AGE = timedelta(days=30 * 365)  # moto says of every upload that it began in 2010


@pytest.fixture
async def storage_fixture(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[S3Fixture, None]:
    async with opened(s3, monkeypatch) as storage_fixture:
        yield storage_fixture


async def break_off(storage: Storage, key: str) -> None:
    """Begin to write an object, and fail when its first part has been sent."""
    async with storage.writer(key) as writer:
        await writer.write(b"x" * PART)
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("size", "parts"), [(PART - 1, 0), (PART, 1), (PART + 1, 2), (2 * PART, 2), (3 * PART + 7, 4)]
)
async def test_a_large_object_is_sent_in_equal_parts(
    storage_fixture: S3Fixture, size: int, parts: int
) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    await write(storage_fixture.storage, "a", data[: size // 3], data[size // 3 : size])
    assert len(storage_fixture.proxy.requests(PART_PUT)) == parts
    assert await storage_fixture.storage.stat("a") == ObjectInfo("a", size)
    assert await storage_fixture.storage.get("a") == data[:size]


async def test_a_part_that_fails_temporarily_is_sent_again(storage_fixture: S3Fixture) -> None:
    storage_fixture.proxy.fail(PART_PUT, 503, "SlowDown")
    storage_fixture.proxy.lose_answer(PART_PUT)
    data = b"abcdefgh" * MIB + b"end"
    await write(storage_fixture.storage, "a", data)
    assert await storage_fixture.storage.get("a") == data
    assert len(storage_fixture.proxy.requests(PART_PUT)) == 4


async def test_a_part_that_fails_permanently_leaves_nothing(storage_fixture: S3Fixture) -> None:
    storage_fixture.proxy.fail(PART_PUT, 403, "AccessDenied")
    with pytest.raises(StorageUnavailable, match="access is denied"):
        await write(storage_fixture.storage, "a", b"x" * (3 * PART))
    assert len(storage_fixture.proxy.requests(ABORT)) == 1 + storage_fixture.counted("delete", "retry")
    assert await storage_fixture.keys() == []
    assert await storage_fixture.storage.sweep(NOW) == 0


async def test_a_completion_without_a_response_is_recognized_by_the_object(
    storage_fixture: S3Fixture,
) -> None:
    await storage_fixture.storage.put("a", b"of another writer")
    storage_fixture.proxy.lose_answer(COMPLETE)
    await write(storage_fixture.storage, "a", b"x" * (PART + 1))
    assert (await storage_fixture.storage.stat("a")).size == PART + 1
    assert storage_fixture.counted("store", "exhausted") == 0


async def test_an_object_of_another_writer_does_not_count_as_a_completion(storage_fixture: S3Fixture) -> None:
    await storage_fixture.storage.put("a", b"of another writer")
    storage_fixture.proxy.fail(COMPLETE, 404, "NoSuchUpload")
    with pytest.raises(StorageUnavailable, match="the upload was aborted"):
        await write(storage_fixture.storage, "a", b"x" * (PART + 1))
    assert await storage_fixture.storage.get("a") == b"of another writer"


async def test_an_error_in_an_answer_of_status_200_is_an_error(storage_fixture: S3Fixture) -> None:
    """S3 begins its response to the completion of an upload with 200 before it knows the result."""
    storage_fixture.proxy.fail(COMPLETE, 200, "InternalError")
    await write(storage_fixture.storage, "a", b"x" * (PART + 1))
    assert len(storage_fixture.proxy.requests(COMPLETE)) == 2
    assert (await storage_fixture.storage.stat("a")).size == PART + 1


async def test_a_cancelled_writer_leaves_nothing(storage_fixture: S3Fixture) -> None:
    begun = asyncio.Event()
    storage_fixture.proxy.on_request = lambda seen: begun.set() if seen.what == PART_PUT else None

    async def write_for_ever() -> None:
        async with storage_fixture.storage.writer("a") as writer:
            while True:
                await writer.write(b"x" * MIB)

    writing = asyncio.create_task(write_for_ever())
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert len(storage_fixture.proxy.requests(ABORT)) == 1 + storage_fixture.counted("delete", "retry")
    assert await storage_fixture.keys() == []
    assert await storage_fixture.storage.sweep(NOW) == 0


async def test_many_writers_have_few_parts_in_flight_and_all_finish(storage_fixture: S3Fixture) -> None:
    writers = [
        write(storage_fixture.storage, f"a/{number}", b"x" * (2 * PART + number)) for number in range(6)
    ]
    await asyncio.gather(*writers)
    sizes = [info.size async for info in storage_fixture.storage.list("a/")]
    assert sizes == [2 * PART + number for number in range(6)]


async def test_an_upload_that_cannot_be_aborted_is_left_to_the_sweep(
    storage_fixture: S3Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    storage_fixture.proxy.fail(ABORT, 403, "AccessDenied")
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        await break_off(storage_fixture.storage, "a")
    assert "unfinished upload is left for the sweep" in caplog.messages
    assert await storage_fixture.storage.sweep(AN_AGE) == 0
    assert await storage_fixture.storage.sweep(NOW) == 1
    assert await storage_fixture.storage.sweep(NOW) == 0


async def test_a_sweep_stays_below_its_prefix(storage_fixture: S3Fixture, s3: S3Server) -> None:
    storage_fixture.proxy.fail(ABORT, 403, "AccessDenied")
    neighbour = f"s3://{s3.bucket}/{fresh_prefix()}"
    async with other(storage_fixture, BATCHWRIGHT_STORAGE=neighbour) as storage:
        with pytest.raises(ZeroDivisionError):
            await break_off(storage, "a")
        assert await storage_fixture.storage.sweep(NOW) == 0
        assert await storage.sweep(NOW) == 1
