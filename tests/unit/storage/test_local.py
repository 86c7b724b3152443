"""Failures that only a storage directory can have."""

import asyncio
import os
import stat
import threading
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.storage.base import ObjectMissing, StorageError, StorageUnavailable
from batchwright.storage.factory import open_storage
from batchwright.storage.local import LocalStorage
from batchwright.storage.observed import StorageComponent
from batchwright.storage.spill.scratch_file import ScratchFile
from batchwright.telemetry.metrics import Metrics


@pytest.fixture
def root(storage: LocalStorage, tmp_path: Path) -> Path:
    return tmp_path / "objects"


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def test_a_put_leaves_only_the_object(storage: LocalStorage, root: Path) -> None:
    await storage.put("a/b", b"x")
    assert files_of(root) == [".tmp", "a", "a/b"]


@pytest.fixture
def open_umask() -> Generator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_no_other_user_reads_what_is_stored_whatever_the_umask(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "new" / "objects")
    await storage.put("a/b", b"x")
    async with storage.writer("c/d/e") as writer:
        await writer.write(b"y")
        [unfinished] = (tmp_path / "new" / "objects" / ".tmp").iterdir()
        assert mode_of(unfinished) == 0o600
    paths = [tmp_path / "new" / "objects", *(tmp_path / "new" / "objects").rglob("*")]
    assert {mode_of(path) for path in paths if path.is_file()} == {0o600}
    assert {mode_of(path) for path in paths if path.is_dir()} == {0o700}


@pytest.mark.usefixtures("open_umask")
def test_a_created_spool_directory_is_private(tmp_path: Path) -> None:
    with ScratchFile(tmp_path / "spool", "A test") as scratch:
        assert mode_of(tmp_path / "spool") == 0o700
        assert stat.S_IMODE(os.fstat(scratch.file.fileno()).st_mode) == 0o600


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_failed_writer_leaves_no_scratch_file(storage: LocalStorage, root: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with storage.writer("a/b"):
            raise ZeroDivisionError
    assert files_of(root) == [".tmp"]


async def test_a_cancelled_writer_leaves_no_scratch_file(storage: LocalStorage, root: Path) -> None:
    begun = asyncio.Event()

    async def write_for_ever() -> None:
        async with storage.writer("a/b") as writer:
            begun.set()
            while True:
                await writer.write(b"x" * 1024 * 1024)

    writing = asyncio.create_task(write_for_ever())
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert files_of(root) == [".tmp"]


async def test_deletion_prunes_empty_folders_and_no_others(storage: LocalStorage, root: Path) -> None:
    await storage.put("a/b/c/d", b"x")
    await storage.put("a/e", b"x")
    await storage.delete("a/b/c/d")
    assert files_of(root) == [".tmp", "a", "a/e"]


async def test_folders_left_empty_by_a_killed_deletion_are_removed_by_the_next_one(
    storage: LocalStorage, root: Path
) -> None:
    await storage.put("a/b/one", b"1")
    await storage.put("a/two", b"2")
    (root / "a" / "b" / "one").unlink()
    await storage.delete("a/b/one")
    assert sorted(path.name for path in (root / "a").iterdir()) == ["two"]


async def test_a_put_survives_the_pruning_of_its_folder(storage: LocalStorage) -> None:
    """Two threads fill and empty the same folders at the same time. In every order, no put fails and no
    object is lost.
    """

    async def churn() -> None:
        for _ in range(100):
            await storage.put("a/b/c/gone", b"x")
            await storage.delete("a/b/c/gone")

    async def keep() -> None:
        for number in range(100):
            await storage.put(f"a/b/c/{number}", b"x")
            assert await storage.get(f"a/b/c/{number}") == b"x"
            await storage.delete(f"a/b/c/{number}")

    await asyncio.gather(churn(), keep())


async def test_a_link_out_of_the_storage_is_refused(
    storage: LocalStorage, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for key in ("folder/secret", "file"):
        with pytest.raises(StorageError, match="symbolic link"):
            await storage.get(key)
        with pytest.raises(StorageError, match="symbolic link"):
            await storage.put(key, b"x")
        with pytest.raises(StorageError, match="symbolic link"):
            await storage.delete(key)
    assert [info async for info in storage.list("")] == []
    assert (outside / "secret").read_bytes() == b"secret"


async def test_a_reader_keeps_its_object_while_it_is_replaced(storage: LocalStorage) -> None:
    await storage.put("a", b"1" * (2 * 1024 * 1024))
    reading = aiter(storage.read("a"))
    first = await anext(reading)
    await storage.put("a", b"2")
    assert set(first + b"".join([piece async for piece in reading])) == {ord("1")}


async def test_an_opened_object_keeps_its_content_after_deletion(
    storage: LocalStorage,
) -> None:
    await storage.put("a/b", b"content")
    with await storage.open_file("a/b") as file:
        await storage.delete("a/b")
        assert file.read() == b"content"
    with pytest.raises(ObjectMissing):
        await storage.open_file("a/b")


async def test_no_file_work_happens_on_the_event_loop(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    real = os.fsync

    def noting(fd: int) -> None:
        threads.add(threading.get_ident())
        real(fd)

    monkeypatch.setattr(os, "fsync", noting)
    await storage.put("a/b", b"x")
    async with storage.writer("a/c") as writer:
        await writer.write(b"x")
    assert threads
    assert threading.get_ident() not in threads


async def test_the_file_and_then_its_folder_are_synced(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.put("a/first", b"x")
    events: list[str] = []
    sync, rename = os.fsync, os.rename

    def noting_sync(fd: int) -> None:
        events.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        sync(fd)

    def noting_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "rename", noting_rename)
    await storage.put("a/second", b"x")
    assert events == ["sync file", "rename", "sync folder"]


async def test_opening_deletes_old_files_of_crashed_writers(tmp_path: Path) -> None:
    scratch = tmp_path / "objects" / ".tmp"
    scratch.mkdir(parents=True)
    (scratch / "old").write_bytes(b"x")
    (scratch / "new").write_bytes(b"x")
    os.utime(scratch / "old", (0, 0))
    async with open_storage(load(storage_dir=tmp_path / "objects"), Metrics(), StorageComponent.WORKER):
        assert files_of(scratch) == ["new"]


async def test_a_storage_that_cannot_be_created_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageUnavailable, match=rf"{tmp_path}/file.*ENOTDIR"):
        async with open_storage(
            load(storage_dir=tmp_path / "file" / "objects"), Metrics(), StorageComponent.WORKER
        ):
            pass


async def test_a_storage_url_overrides_the_directory(tmp_path: Path) -> None:
    settings = load(storage=f"file://{tmp_path}/here", storage_dir=tmp_path / "there")
    async with open_storage(settings, Metrics(), StorageComponent.WORKER) as storage:
        await storage.put("a", b"x")
    assert (tmp_path / "here" / "a").read_bytes() == b"x"
    assert not (tmp_path / "there").exists()


async def test_a_sweep_takes_old_scratch_files_only(storage: LocalStorage, root: Path) -> None:
    await storage.put("a", b"x")
    (root / ".tmp" / "old").write_bytes(b"x")
    os.utime(root / ".tmp" / "old", (0, 0))
    assert await storage.sweep(timedelta(days=1)) == 1
    assert files_of(root) == [".tmp", "a"]


async def test_a_missing_object_is_missing_in_a_storage_without_any(storage: LocalStorage) -> None:
    with pytest.raises(ObjectMissing):
        await storage.get("a/b")
