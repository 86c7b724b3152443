"""Guarantees of every storage.

The fixture `any_storage` runs each test on each implementation: in memory, on disk, and on S3.
"""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage

MIB = 1024 * 1024


async def break_off(storage: Storage, key: str, data: bytes) -> None:
    async with storage.writer(key) as writer:
        await writer.write(data)
        raise ZeroDivisionError


async def test_an_object_is_read_as_it_was_written(any_storage: Storage) -> None:
    await any_storage.put("a/b/c", b"bytes")
    assert await any_storage.get("a/b/c") == b"bytes"
    assert await any_storage.stat("a/b/c") == ObjectInfo("a/b/c", 5)


async def test_an_empty_object_is_an_object(any_storage: Storage) -> None:
    await any_storage.put("empty", b"")
    assert await any_storage.get("empty") == b""
    assert [piece async for piece in any_storage.read("empty")] == []
    assert await any_storage.stat("empty") == ObjectInfo("empty", 0)


async def test_a_second_put_replaces_the_whole(any_storage: Storage) -> None:
    await any_storage.put("a", b"a long first one")
    await any_storage.put("a", b"short")
    assert await any_storage.get("a") == b"short"


async def test_a_missing_object_is_named_by_every_reader(any_storage: Storage) -> None:
    with pytest.raises(ObjectMissing, match="'no/such'"):
        await any_storage.get("no/such")
    with pytest.raises(ObjectMissing, match="'no/such'"):
        await any_storage.stat("no/such")
    with pytest.raises(ObjectMissing, match="'no/such'"):
        await anext(aiter(any_storage.read("no/such")))


async def test_a_folder_is_no_object(any_storage: Storage) -> None:
    await any_storage.put("a/b", b"x")
    with pytest.raises(ObjectMissing):
        await any_storage.get("a")
    with pytest.raises(ObjectMissing):
        await any_storage.stat("a/b/c")


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 4, b"3456"),
        (0, 0, b""),
        (8, 100, b"89"),
        (10, None, b""),
        (99, 5, b""),
    ],
)
async def test_a_range_returns_the_existing_bytes(
    any_storage: Storage, start: int, length: int | None, expected: bytes
) -> None:
    await any_storage.put("digits", b"0123456789")
    assert await any_storage.get("digits", start, length) == expected
    assert b"".join([piece async for piece in any_storage.read("digits", start, length)]) == expected


async def test_a_large_object_is_read_in_chunks_of_a_mebibyte(any_storage: Storage) -> None:
    data = bytes(range(256)) * (10 * 1024) + b"end"
    await any_storage.put("large", data)
    pieces = [piece async for piece in any_storage.read("large", start=1)]
    assert b"".join(pieces) == data[1:]
    assert max(len(piece) for piece in pieces) <= MIB


async def test_a_writer_accepts_every_kind_of_bytes(any_storage: Storage) -> None:
    async with any_storage.writer("w/x") as writer:
        await writer.write(b"a")
        await writer.write(bytearray(b"b"))
        await writer.write(memoryview(b"-c-")[1:2])
        await writer.write(b"d" * (3 * MIB))
    assert await any_storage.get("w/x") == b"abc" + b"d" * (3 * MIB)


async def test_a_buffer_passed_to_a_writer_may_change_afterwards(any_storage: Storage) -> None:
    reused = bytearray(b"one")
    async with any_storage.writer("w") as writer:
        await writer.write(reused)
        reused[:] = b"two"
        await writer.write(reused)
    assert await any_storage.get("w") == b"onetwo"


async def test_an_object_does_not_exist_before_its_writer_ends(any_storage: Storage) -> None:
    async with any_storage.writer("w") as writer:
        await writer.write(b"x" * (2 * MIB))
        with pytest.raises(ObjectMissing):
            await any_storage.stat("w")
        assert [info async for info in any_storage.list("")] == []
    assert (await any_storage.stat("w")).size == 2 * MIB


async def test_an_exception_in_a_writer_leaves_nothing(any_storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError):
        await break_off(any_storage, "w", b"x" * (2 * MIB))
    assert [info async for info in any_storage.list("")] == []


async def test_an_exception_in_a_writer_leaves_the_object_before_it(any_storage: Storage) -> None:
    await any_storage.put("w", b"before")
    with pytest.raises(ZeroDivisionError):
        await break_off(any_storage, "w", b"after")
    assert await any_storage.get("w") == b"before"


async def test_a_list_is_in_the_order_of_keys_across_folders(any_storage: Storage) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b-c", "a0", "aB", "ab", "b/a/a", "b/b"]
    for key in reversed(keys):
        await any_storage.put(key, key.encode())
    assert [info async for info in any_storage.list("")] == [ObjectInfo(key, len(key)) for key in keys]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("results/", ["results/m/1/x", "results/m/1/y", "results/m/10/z"]),
        ("results/m/1/", ["results/m/1/x", "results/m/1/y"]),
        ("results/m/1", ["results/m/1/x", "results/m/1/y", "results/m/10/z"]),
        ("results/m/1/x", ["results/m/1/x"]),
        ("nothing/here/", []),
        ("results/m/1/x/", []),
    ],
)
async def test_a_prefix_is_the_beginning_of_a_key(
    any_storage: Storage, prefix: str, expected: list[str]
) -> None:
    for key in ("plan", "results/m/1/x", "results/m/1/y", "results/m/10/z", "resultsets"):
        await any_storage.put(key, b"x")
    assert [info.key async for info in any_storage.list(prefix)] == expected


async def test_deleting_twice_is_fine(any_storage: Storage) -> None:
    await any_storage.put("a/b", b"x")
    await any_storage.delete("a/b")
    await any_storage.delete("a/b")
    await any_storage.delete("a/b/c")
    with pytest.raises(ObjectMissing):
        await any_storage.get("a/b")


async def test_deleting_a_prefix_returns_the_number_of_objects(any_storage: Storage) -> None:
    for key in ("t/b1/x", "t/b1/y/z", "t/b10/x", "t/b2"):
        await any_storage.put(key, b"x")
    assert await any_storage.delete_prefix("t/b1/") == 2
    assert await any_storage.delete_prefix("t/b1/") == 0
    assert [info.key async for info in any_storage.list("")] == ["t/b10/x", "t/b2"]


async def test_the_check_of_a_healthy_storage_passes_and_leaves_nothing(any_storage: Storage) -> None:
    await any_storage.check()
    assert [info async for info in any_storage.list("")] == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        "a/",
        "../a",
        "a/../b",
        "a/.",
        ".tmp/x",
        "a\\b",
        "a\0b",
        "ä",
        "x" * 1025,
    ],
)
async def test_an_invalid_key_is_refused_by_every_call(any_storage: Storage, key: str) -> None:
    with pytest.raises(ValueError, match="not a storage key"):
        await any_storage.put(key, b"x")
    with pytest.raises(ValueError, match="not a storage key"):
        await any_storage.get(key)
    with pytest.raises(ValueError, match="not a storage key"):
        await any_storage.delete(key)
    with pytest.raises(ValueError, match="not a storage key"):
        async with any_storage.writer(key):
            pass


@pytest.mark.parametrize("prefix", ["/", "..", "a/../", ".tmp"])
async def test_a_prefix_that_begins_no_key_is_refused(any_storage: Storage, prefix: str) -> None:
    with pytest.raises(ValueError, match="beginning of a storage key"):
        await any_storage.delete_prefix(prefix)


async def test_an_inventory_has_times_and_continues_after_a_key(any_storage: Storage) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    keys = ["a/b", "a/b-c", "a/b.d/e", "a/b/c", "a/c/d", "b"]
    for key in [key for key in keys if key != "a/b"]:
        await any_storage.put(key, b"xy")
    found = [dated async for dated in any_storage.inventory("a/")]
    assert [(dated.key, dated.size) for dated in found] == [(key, 2) for key in keys[1:-1]]
    assert all(dated.written_at > before for dated in found)
    for place, key in enumerate(keys[1:-1], start=2):
        behind = [dated.key async for dated in any_storage.inventory("a/", after=key)]
        assert behind == keys[place:-1]
