"""Large objects on S3, that go out in parts: sent again, broken off, left behind."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from batchwright.storage.base import ObjectInfo, Storage, StorageUnavailable
from tests.fakes.s3 import S3Server, fresh_prefix
from tests.integration.s3_house import MIB, NOW, PART, House, opened, other, write

PART_PUT, COMPLETE, ABORT = "PUT uploadId", "POST uploadId", "DELETE uploadId"
AN_AGE = timedelta(days=30 * 365)  # moto says of every upload that it began in 2010


@pytest.fixture
async def house(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[House, None]:
    async with opened(s3, monkeypatch) as house:
        yield house


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
