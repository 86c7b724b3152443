"""Callbacks of backends in every database: only the first one counts. It is read, emptied, and deleted."""

from datetime import UTC, datetime, timedelta

from batchwright.database.database import Database
from batchwright.database.tables.callbacks import ReceivedCallback

AT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_the_first_call_of_an_id_counts(any_database: Database) -> None:
    table = any_database.callbacks
    assert await table.accept("first-a", b"{}", 2, AT)
    assert not await table.accept("first-a", b"[]", 2, AT)
    assert await table.accept("first-b", None, 99_000_000_000, AT)
    assert sorted(await table.get(["first-a", "first-b", "first-c"])) == [
        ReceivedCallback("first-a", 2, b"{}"),
        ReceivedCallback("first-b", 99_000_000_000, None),
    ]
    assert await table.get([]) == []


async def test_a_callback_without_its_body_still_refuses_a_second_one(any_database: Database) -> None:
    table = any_database.callbacks
    await table.accept("emptied", b"{}", 2, AT)
    await table.clear_bodies(["emptied", "unknown"])
    assert await table.get(["emptied"]) == []
    assert not await table.accept("emptied", b"{}", 2, AT)


async def test_expired_callbacks_are_deleted(any_database: Database) -> None:
    table = any_database.callbacks
    await table.accept("old", b"{}", 2, AT)
    await table.accept("new", b"{}", 2, AT + timedelta(hours=1))
    await table.delete_expired(AT + timedelta(minutes=1))
    assert [callback.id for callback in await table.get(["old", "new"])] == ["new"]
    assert await table.accept("old", b"{}", 2, AT)
