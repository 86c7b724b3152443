"""Bytes that grow have the same content in memory and on disk. Their memory is limited."""

import random
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from batchwright.rules import growing_bytes
from batchwright.rules.growing_bytes import GrowingBytes, rows_of, sorted_rows
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.spill import scratch_file, spilled_bytes
from batchwright.storage.spill.spilled_bytes import SpillSpace

ROWS = [random.Random(seed).randbytes(8) for seed in range(2_000)]
Made = Callable[[], GrowingBytes]


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[SpillSpace]:
    monkeypatch.setattr(spilled_bytes, "_MEMORY_BYTES", 4_000)
    monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1_000)
    space = SpillSpace(tmp_path, "Ingestion")
    yield space
    space.close()


@pytest.fixture(params=["memory", "disk"])
def made(request: pytest.FixtureRequest, space: SpillSpace, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(growing_bytes, "_RUN_ROWS", 300)
    return GrowingBytes if request.param == "memory" else space.new_bytes


def filled(made: Made, rows: list[bytes] = ROWS) -> GrowingBytes:
    stored = made()
    for row in rows:
        stored.append(row)
    return stored


def test_bytes_are_read_as_they_were_appended_and_replaced(made: Made) -> None:
    stored, expected = filled(made), bytearray(b"".join(ROWS))
    assert len(stored) == len(expected)
    for start, end in ((0, 10), (len(expected) - 30, len(expected) + 5), (100, len(expected) - 3)):
        assert stored.read(start, end) == expected[start:end]
        stored.replace(start, b"x" * len(expected[start:end]))
        expected[start:end] = b"x" * len(expected[start:end])
    assert stored.read(0, len(stored)) == expected
    assert b"".join(stored.pieces(999)) == expected


def test_rows_are_returned_in_their_order_and_sorted(made: Made) -> None:
    stored = filled(made)
    assert list(rows_of(stored, 8)) == ROWS
    found = sorted_rows(stored, 8, lambda run: sorted(run[at : at + 8] for at in range(0, len(run), 8)))
    assert list(found) == sorted(ROWS)


def test_all_growing_bytes_of_an_activity_share_one_limit_of_memory(
    space: SpillSpace, tmp_path: Path
) -> None:
    several = [filled(space.new_bytes) for _ in range(3)]
    held = sum(len(one._memory) for one in several)  # pyright: ignore[reportPrivateUsage]
    assert held <= 4_000 + 3 * 1_000
    assert [one.read(0, len(one)) for one in several] == [b"".join(ROWS)] * 3
    assert list(tmp_path.iterdir()) == []  # the files have no names


def test_bytes_that_are_appended_at_once_are_on_disk_if_they_exceed_the_limit(space: SpillSpace) -> None:
    stored = space.new_bytes()
    stored.append(bytes(3_500))
    stored.append(bytes(3_500))
    assert len(stored._memory) <= 1_000  # pyright: ignore[reportPrivateUsage]
    assert stored.read(0, 7_000) == bytes(7_000)


def test_a_disk_with_too_little_space_is_named_before_each_write(
    space: SpillSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)

    def leave(free: int) -> None:
        def disk_usage(_: Path) -> NamedTuple:
            return usage._replace(free=free)

        monkeypatch.setattr(shutil, "disk_usage", disk_usage)

    monkeypatch.setattr(scratch_file, "_SPARE_BYTES", 0)
    leave(0)
    in_memory = filled(space.new_bytes, ROWS[:600])
    assert len(in_memory) == 4_800
    with pytest.raises(StorageFull, match=r"Ingestion needs 1000 bytes in .*, 0 are free"):
        filled(space.new_bytes)  # before the first write
    leave(1_000)
    on_disk = filled(space.new_bytes)
    leave(999)
    with pytest.raises(StorageFull, match=r"Ingestion needs 1000 bytes in .*, 999 are free"):
        on_disk.append(bytes(1_000))
    assert on_disk.read(0, 8 * len(ROWS)) == b"".join(ROWS)


def test_a_directory_that_cannot_be_used_is_named(space: SpillSpace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = SpillSpace(tmp_path / "file", "Ingestion")
    with pytest.raises(StorageUnavailable, match="BATCHWRIGHT_SPOOL_DIR"):
        filled(unusable.new_bytes)


def test_bytes_that_a_full_disk_refused_halfway_are_written_whole_later(
    space: SpillSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scratch_file.ScratchFile.write

    def write_half(file: scratch_file.ScratchFile, data: bytes | memoryview) -> None:
        write(file, memoryview(data)[: len(data) // 2])
        raise StorageFull("no space left")

    stored = filled(space.new_bytes)
    size = len(stored)
    with monkeypatch.context() as environment:
        environment.setattr(scratch_file.ScratchFile, "write", write_half)
        with pytest.raises(StorageFull):
            stored.append(b"x" * 1_000)
    stored.append(b"y" * 1_000)
    assert stored.read(0, size + 2_000) == b"".join(ROWS) + b"x" * 1_000 + b"y" * 1_000


def test_cleared_bytes_free_their_memory_and_their_file(space: SpillSpace) -> None:
    first = filled(space.new_bytes, ROWS[:400])
    assert len(filled(space.new_bytes)._memory) < 1_000  # pyright: ignore[reportPrivateUsage]
    first.clear()
    assert (len(first), first.read(0, 10)) == (0, b"")
    second = filled(space.new_bytes, ROWS[:400])
    assert len(second._memory) == 3_200  # pyright: ignore[reportPrivateUsage]
    on_disk = filled(space.new_bytes)
    on_disk.clear()
    on_disk.append(b"again")
    assert on_disk.read(0, 10) == b"again"
