"""Calls of backends: the first counts, is read by those who wait, emptied, forgotten."""

import asyncio
from datetime import UTC, datetime, timedelta

from batchwright.database.base import DatabaseLike
from batchwright.database.callbacks_base import Told

AT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_the_first_call_of_an_id_counts(any_database: DatabaseLike) -> None:
    table = any_database.callbacks
    assert await table.accept("first-a", b"{}", 2, AT)
    assert not await table.accept("first-a", b"[]", 2, AT)
    assert await table.accept("first-b", None, 99_000_000_000, AT)
    assert sorted(await table.told(["first-a", "first-b", "first-c"])) == [
        Told("first-a", 2, b"{}"),
        Told("first-b", 99_000_000_000, None),
    ]
    assert await table.told([]) == []


async def test_what_was_emptied_is_remembered_as_called(any_database: DatabaseLike) -> None:
    table = any_database.callbacks
    await table.accept("emptied", b"{}", 2, AT)
    await table.empty(["emptied", "unknown"])
    assert await table.told(["emptied"]) == []
    assert not await table.accept("emptied", b"{}", 2, AT)


async def test_what_expired_is_forgotten(any_database: DatabaseLike) -> None:
    table = any_database.callbacks
    await table.accept("old", b"{}", 2, AT)
    await table.accept("new", b"{}", 2, AT + timedelta(hours=1))
    await table.forget(AT + timedelta(minutes=1))
    assert [told.id for told in await table.told(["old", "new"])] == ["new"]
    assert await table.accept("old", b"{}", 2, AT)


async def test_who_listens_hears_of_each_first_call_and_of_every_word(any_database: DatabaseLike) -> None:
    table = any_database.callbacks
    heard: list[str] = []
    last = asyncio.Event()

    def hear(word: str) -> None:
        heard.append(word)
        if word == "last word":
            last.set()

    async with table.listening(hear) as lost:
        assert await table.accept("heard-a", b"{}", 2, AT)
        assert not await table.accept("heard-a", b"{}", 2, AT)
        assert await table.accept("heard-b", None, 99, AT)
        await table.ring("last word")
        async with asyncio.timeout(240):
            await last.wait()
        assert not lost.is_set()
    assert heard == ["heard-a", "heard-b", "last word"]
