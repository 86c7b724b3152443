"""The table of callbacks, in memory and in PostgreSQL.

Only the first callback of a job is stored. It is read, its body is removed, and at last it is deleted.
"""

from datetime import UTC, datetime, timedelta

from batchwright.database.database import Database
from batchwright.database.tables.callbacks import ReceivedCallback

AT = datetime(2100, 1, 1, tzinfo=UTC)


async def test_the_first_call_of_an_id_counts(any_database: Database) -> None:
    table = any_database.callbacks
    assert not await table.is_received("first-a")
    assert await table.accept("first-a", b"{}", 2, AT)
    assert await table.is_received("first-a")
    assert not await table.accept("first-a", b"[]", 2, AT)
    assert await table.accept("first-b", None, 99_000_000_000, AT)
    found = await table.get(["first-a", "first-b", "first-c"], 2)
    assert sorted(found.callbacks) == [
        ReceivedCallback("first-a", 2, b"{}"),
        ReceivedCallback("first-b", 99_000_000_000, None),
    ]
    assert not found.has_more
    assert await table.get([], 2) == ([], False)


async def test_an_expired_callback_is_not_stored(any_database: Database) -> None:
    table = any_database.callbacks
    assert not await table.accept("late", b"{}", 2, datetime.now(UTC) - timedelta(seconds=1))
    assert not await table.is_received("late")


async def test_a_callback_without_its_body_still_refuses_a_second_one(any_database: Database) -> None:
    table = any_database.callbacks
    await table.accept("emptied", b"{}", 2, AT)
    await table.clear_bodies(["emptied", "unknown"])
    assert await table.get(["emptied"], 2) == ([], False)
    assert await table.is_received("emptied")
    assert not await table.accept("emptied", b"{}", 2, AT)


async def test_expired_callbacks_are_deleted(any_database: Database) -> None:
    table = any_database.callbacks
    await table.accept("old", b"{}", 2, AT)
    await table.accept("new", b"{}", 2, AT + timedelta(hours=1))
    await table.delete_expired(AT + timedelta(minutes=1))
    assert [callback.id for callback in (await table.get(["old", "new"], 4)).callbacks] == ["new"]
    assert await table.accept("old", b"{}", 2, AT)


async def test_callbacks_that_are_too_large_together_are_returned_in_parts(any_database: Database) -> None:
    table, ids = any_database.callbacks, [f"part-{number}" for number in range(5)]
    for id, body in zip(ids, (b"1", b"22", None, b"4444", b"5"), strict=True):
        await table.accept(id, body, 4, AT)

    async def returned(since: int) -> tuple[list[str], bool]:
        found = await table.get(ids[since:], 3)
        return sorted(callback.id for callback in found.callbacks), found.has_more

    assert await returned(0) == (ids[:3], True)
    assert await returned(3) == ([ids[3]], True)
    assert await returned(4) == ([ids[4]], False)


async def test_callbacks_that_expire_first_are_returned_first(any_database: Database) -> None:
    table, ids = any_database.callbacks, ["due-a", "due-b", "due-c"]
    for hours, id in zip((3, 1, 2), ids, strict=True):
        await table.accept(id, b"22", 2, AT + timedelta(hours=hours))
    found = await table.get(ids, 4)
    assert sorted(callback.id for callback in found.callbacks) == ["due-b", "due-c"]
    assert found.has_more
