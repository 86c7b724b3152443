"""CoalescingCache: cached values, refreshes, concurrent reads, errors."""

import asyncio

import pytest

from batchwright.api.read_cache import CoalescingCache


class Source:
    def __init__(self) -> None:
        self.reads: list[str] = []
        self.now, self.fails = 0.0, False
        self.recent = CoalescingCache(self.read, 1.0, lambda: self.now)

    async def read(self, key: str) -> int:
        self.reads.append(key)
        if self.fails:
            raise OSError("away")
        return len(self.reads)


async def test_a_value_is_read_again_after_its_lifetime() -> None:
    source = Source()
    assert [await source.recent.get("a"), await source.recent.get("a")] == [1, 1]
    source.now = 1.0
    assert await source.recent.get("a") == 2


async def test_a_frequent_reader_does_not_wait_for_the_refresh() -> None:
    source, gate, ended = Source(), asyncio.Event(), asyncio.Event()

    async def read(key: str) -> int:
        if source.reads:
            await gate.wait()
            ended.set()
        return await source.read(key)

    recent = CoalescingCache(read, 1.0, lambda: source.now)
    assert await recent.get("a") == 1
    source.now = 0.5
    assert [await recent.get("a"), await recent.get("a")] == [1, 1]
    gate.set()
    async with asyncio.timeout(60):
        await ended.wait()
    assert source.reads == ["a", "a"]
    source.now = 0.9
    assert await recent.get("a") == 2
    assert source.reads == ["a", "a"]


async def test_a_failed_refresh_is_hidden_until_the_value_is_too_old() -> None:
    source = Source()
    assert await source.recent.get("a") == 1
    source.fails, source.now = True, 0.6
    assert await source.recent.get("a") == 1
    source.now = 1.0
    with pytest.raises(OSError, match="away"):
        await source.recent.get("a")


async def test_each_key_has_its_own_value() -> None:
    source = Source()
    assert [await source.recent.get(key) for key in "abab"] == [1, 2, 1, 2]


async def test_a_failure_is_raised_and_not_cached() -> None:
    source = Source()
    source.fails = True
    with pytest.raises(OSError, match="away"):
        await source.recent.get("a")
    source.fails = False
    assert await source.recent.get("a") == 2


async def test_concurrent_readers_share_one_read_and_a_cancelled_one_does_not_abort_it() -> None:
    source, gate = Source(), asyncio.Event()

    async def read(key: str) -> int:
        await gate.wait()
        return await source.read(key)

    recent = CoalescingCache(read, 1.0, lambda: source.now)
    first, *others = [asyncio.create_task(recent.get("a")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    source.now = 1.0
    late = asyncio.create_task(recent.get("a"))
    await asyncio.sleep(0)
    gate.set()
    assert {await late, *await asyncio.gather(*others)} == {1, 2}
    assert len({await other for other in others}) == 1
    assert first.cancelled()


async def test_a_failure_is_raised_to_all_waiting_readers() -> None:
    source = Source()
    source.fails = True
    found = await asyncio.gather(*(source.recent.get("a") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [OSError] * 3
    assert source.reads == ["a"]
