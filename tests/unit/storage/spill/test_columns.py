"""Columns of numbers have the same content in memory and on disk. All columns together take little memory."""

import gc
import mmap
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.spill import columns, scratch_file
from batchwright.storage.spill.columns import ColumnSpace


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ColumnSpace:
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 1_000)
    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    return ColumnSpace(tmp_path)


class _KnownLock:
    """A lock that sets `waits` when a thread must wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.RLock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def space_with_known_lock(
    space: ColumnSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ColumnSpace, threading.Event]:
    """A column space with 1,000 bytes of memory, and an event that is set when a thread waits
    for its lock.
    """
    waits = threading.Event()
    with monkeypatch.context() as creation:
        creation.setattr(threading, "Lock", lambda: _KnownLock(waits))
        return ColumnSpace(tmp_path), waits


def open_files(folder: Path) -> int:
    """Return how many files in a folder this process has open, including files without names."""
    links = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(link.startswith(f"{folder}/") for link in links)


@pytest.mark.parametrize("count", [3, 5_000])
def test_numbers_are_0_at_first_and_keep_what_is_written(space: ColumnSpace, count: int) -> None:
    made = space.new_columns(("B", count), ("Q", count), ("i", count), ("I", 0))
    for view in made.views[:3]:
        assert view.tolist() == [0] * count
    small, large, signed, empty = made.views
    small[count - 1], large[0], signed[1] = 255, 2**64 - 1, -1
    made.release_pages()
    assert (small[count - 1], large[0], signed[1], len(empty)) == (255, 2**64 - 1, -1, 0)
    assert (small[0], large[1], signed[0]) == (0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files")
def test_columns_that_do_not_fit_into_the_memory_of_all_are_in_files_without_names(
    space: ColumnSpace, tmp_path: Path
) -> None:
    small = space.new_columns(("B", 600)).views
    assert open_files(tmp_path) == 0
    large = space.new_columns(("B", 600)).views
    assert open_files(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    del small, large
    gc.collect()
    assert open_files(tmp_path) == 0
    again = space.new_columns(("B", 600)).views  # the memory is free again
    assert (open_files(tmp_path), len(again)) == (0, 1)


def test_two_threads_do_not_take_the_same_memory(
    space_with_known_lock: tuple[ColumnSpace, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread begins after the first one has found enough free memory, but before it has taken this
    memory.
    """
    space, goes_on = space_with_known_lock
    real, files, threads, made = mmap.mmap, list[int](), list[threading.Thread](), list[columns.Columns]()

    def create() -> None:
        made.append(space.new_columns(("B", 600)))
        goes_on.set()

    def mapped(file: int, *args: int, **options: int) -> mmap.mmap:
        if not threads:
            threads.append(threading.Thread(target=create))
            threads[0].start()
            goes_on.wait()  # until the second thread has its columns, or waits for the first thread
        files.append(file)
        return real(file, *args, **options)

    monkeypatch.setattr(mmap, "mmap", mapped)
    create()
    threads[0].join()
    assert len(made) == 2
    assert files.count(-1) == 1  # the other columns are in a file


def test_a_disk_with_too_little_space_is_named_before_anything_is_written(
    space: ColumnSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(scratch_file, "_SPARE_BYTES", 0)

    def disk_usage(_: Path) -> NamedTuple:
        return usage._replace(free=1_999)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with pytest.raises(StorageFull, match=r"Reading results needs 2000 bytes in .*, 1999 are free"):
        space.new_columns(("B", 2_000))


def test_a_directory_that_cannot_be_used_is_named(space: ColumnSpace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = ColumnSpace(tmp_path / "file")
    assert len(unusable.new_columns(("B", 900)).views[0]) == 900
    with pytest.raises(StorageUnavailable, match="BATCHWRIGHT_SPOOL_DIR"):
        unusable.new_columns(("B", 2_000))


def test_small_columns_need_no_disk_though_others_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
    (tmp_path / "file").touch()
    unusable = ColumnSpace(tmp_path / "file")
    assert len(unusable.new_columns(("B", 2**20 - 1)).views[0]) == 2**20 - 1
    with pytest.raises(StorageUnavailable, match="BATCHWRIGHT_SPOOL_DIR"):
        unusable.new_columns(("B", 2**20 + 1))
