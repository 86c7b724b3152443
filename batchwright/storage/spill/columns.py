"""Columns of numbers: in memory, or in files on the local disk if there are too many numbers for memory."""

import mmap
import threading
from array import array
from pathlib import Path
from typing import Literal
from weakref import WeakSet

from batchwright.storage.spill.scratch_file import ScratchFile
from batchwright.storage.spill.spilled_bytes import SpillSpace

_MEMORY_BYTES = 64 * 1024 * 1024  # more than the columns of a batch of a million lines
_SMALL_BYTES = 1024 * 1024  # the columns of a batch of 40,000 lines
_SPILL_BYTES = 8 * 1024 * 1024  # the offsets of a million lines
_WRITE_BYTES = 1024 * 1024
_ALIGNMENT = 8
_PURPOSE = "Reading results"  # error messages begin with it
_NumberType = Literal["B", "i", "I", "Q"]  # as in the module `array`


class Columns:
    """A group of columns that were created together. A column is a list of numbers with a fixed length.

    At first, all numbers are 0.

    Attributes:
        views: the columns. The numbers can be read and replaced. As long as one view exists, the memory or
            the file of all these columns stays in use.
        is_file: True if the columns are in a file.
    """

    def __init__(self, mapping: mmap.mmap, views: list[memoryview], *, is_file: bool) -> None:
        self._mapping, self.views, self.is_file = mapping, views, is_file

    def release_pages(self) -> None:
        """Allow the operating system to remove the data of a file from memory. No data is lost.

        Without this call, all parts of the file that the process has read or changed count as memory of the
        process. If the columns are not in a file, nothing happens.
        """
        if self.is_file:
            self._mapping.madvise(mmap.MADV_DONTNEED)


class ColumnSpace:
    """A creator of columns of numbers, which are in memory or in unnamed files on the local disk.

    If all columns in memory would need more than 64 MiB with the new columns, the new ones are in a file.
    Columns of up to 1 MiB are always created in memory, so that a small batch needs no disk. Memory and files
    are freed as soon as none of their columns is referenced. Several threads may use a ColumnSpace at the
    same time.

    Args:
        directory: where the files are created; None for the system's temporary directory.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # held while the mappings in use are counted or changed
        self._in_memory, self._in_files = WeakSet[mmap.mmap](), WeakSet[mmap.mmap]()

    def new_columns(self, *columns: tuple[_NumberType, int]) -> Columns:
        """Create several columns, which are freed together.

        Args:
            columns: for each column, the type of its numbers and how many numbers it has.

        Raises:
            StorageFull: the columns need a file, and the disk has too little free space.
            StorageUnavailable: the file cannot be created.
        """
        sizes = [array(type).itemsize * count for type, count in columns]
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
        total = max(starts[-1], _ALIGNMENT)
        mapping = self._map_memory(total)
        is_file = mapping is None
        if mapping is None:
            mapping = self._map_file(total)
        whole = memoryview(mapping)
        views = [
            whole[start : start + size].cast(type)
            for (type, _), start, size in zip(columns, starts, sizes, strict=False)
        ]
        return Columns(mapping, views, is_file=is_file)

    def new_spill_space(self) -> SpillSpace:
        """Create a SpillSpace, which creates sequences of bytes that can grow.

        If it is not known how many numbers there will be, use such a sequence instead of a column. If all
        sequences together need more than 8 MiB of memory, some of their bytes are moved to files. The caller
        must close the SpillSpace. This deletes the files.
        """
        return SpillSpace(self._directory, _PURPOSE, _SPILL_BYTES)

    def file_bytes_with(self, size: int) -> int:
        """Return how many bytes all files together will have after the creation of new columns.

        This method creates nothing. If the new columns fit into memory, return the present size of the files.

        Args:
            size: size of the new columns in bytes.
        """
        with self._lock:
            in_files = sum(map(len, self._in_files))
            return in_files if self._fits_in_memory(size) else in_files + size

    def _fits_in_memory(self, size: int) -> bool:
        return size <= _SMALL_BYTES or sum(map(len, self._in_memory)) + size <= _MEMORY_BYTES

    def _map_memory(self, size: int) -> mmap.mmap | None:
        """Return memory for new columns of `size` bytes, or None if the limit of memory would be exceeded.

        Columns of up to 1 MiB get memory even if the limit is exceeded.
        """
        with self._lock:
            if not self._fits_in_memory(size):
                return None
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._in_memory.add(mapping)
            return mapping

    def _map_file(self, size: int) -> mmap.mmap:
        with ScratchFile(self._directory, _PURPOSE) as file:
            file.require(size)
            # The disk must accept all bytes now: if it refused a page of the mapping later, the process
            # would be killed.
            for start in range(0, size, _WRITE_BYTES):
                file.write(bytes(min(_WRITE_BYTES, size - start)))
            mapping = mmap.mmap(file.file.fileno(), size)
        with self._lock:
            self._in_files.add(mapping)
        return mapping
