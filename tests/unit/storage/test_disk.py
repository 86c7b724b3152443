"""A storage directory whose disk is full, fails or disappears."""

import errno
import os
from pathlib import Path

import pytest

from batchwright.storage import files
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.local import LocalStorage
from tests.unit.storage.test_local import files_of


@pytest.fixture
def root(storage: LocalStorage, tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_has_its_own_error_and_leaves_nothing(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match=rf"a/b.*{errno.errorcode[code]}"):
        await storage.put("a/b", b"x")
    with pytest.raises(StorageFull):
        async with storage.writer("a/b") as writer:
            await writer.write(b"x")
    assert [info async for info in storage.list("")] == []
    assert files_of(root / ".tmp") == []


async def test_a_delayed_disk_error_fails_the_file(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", lost)
    monkeypatch.setattr(files, "_SYNC_BYTES", 1)
    with pytest.raises(StorageUnavailable, match=r"a/b.*EIO"):
        async with storage.writer("a/b") as writer:
            await writer.write(b"x" * files.BUFFER)
    assert [info async for info in storage.list("")] == []
    assert files_of(root / ".tmp") == []


async def test_an_abandoned_writer_waits_for_the_disk_and_leaves_nothing(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def noting(fd: int) -> None:
        os.fsync(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", noting)
    monkeypatch.setattr(files, "_SYNC_BYTES", 1)

    async def leave() -> None:
        async with storage.writer("a/b") as writer:
            await writer.write(b"x" * files.BUFFER)
            raise LookupError

    with pytest.raises(LookupError):
        await leave()
    assert len(synced) == 1
    assert files_of(root / ".tmp") == []


async def test_a_disk_error_names_the_path_and_the_errno(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.put("a/b", b"x")

    def broken(fd: int, length: int, start: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(StorageUnavailable, match=rf"{root}/a/b.*EIO"):
        await storage.get("a/b")
    with pytest.raises(StorageUnavailable):
        await storage.check()


async def test_a_file_that_shrank_is_an_error_not_an_end(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.put("a", b"0123456789")

    def ends(fd: int, length: int, start: int) -> bytes:
        return b""

    monkeypatch.setattr(os, "pread", ends)
    with pytest.raises(StorageUnavailable, match="EIO"):
        await storage.get("a")


async def test_a_missing_storage_is_not_reported_as_missing_objects(
    storage: LocalStorage, root: Path
) -> None:
    await storage.put("a", b"x")
    os.rename(root, root.with_name("unmounted"))
    with pytest.raises(StorageUnavailable, match="is it mounted"):
        await storage.get("a")
    with pytest.raises(StorageUnavailable):
        await storage.put("b", b"x")


def replace(root: Path, moved: Path, instead: str) -> None:
    root.rename(moved)
    if instead == "file":
        root.write_text("")
    elif instead == "other folder":
        root.mkdir()


@pytest.mark.parametrize("instead", ["nothing", "file", "other folder"])
async def test_a_missing_directory_is_an_unavailable_storage(
    storage: LocalStorage, root: Path, tmp_path: Path, instead: str
) -> None:
    """The disk was unmounted. The storage must report its objects as unavailable, and not as missing."""
    await storage.put("a/b", b"x")
    replace(root, tmp_path / "away", instead)
    with pytest.raises(StorageUnavailable):
        await storage.check()
    with pytest.raises(StorageUnavailable):
        await storage.put("a/c", b"y")
    with pytest.raises(StorageUnavailable):
        await storage.get("a/b")
    with pytest.raises(StorageUnavailable):
        [info async for info in storage.list("a/")]
