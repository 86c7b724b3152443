"""Scratch file on the local disk for results, until they are written in the order of the input."""

import os
from collections.abc import Sequence
from pathlib import Path

from batchwright.storage.base import StorageUnavailable
from batchwright.storage.spill.spool import Spool

_MEMORY_BYTES = 32 * 1024 * 1024  # more than the rows of a million results, which take 24 bytes each


class ResultSpool(Spool):
    """A local scratch file to which data is only appended. One thread at a time may use it."""

    def __init__(self, directory: Path | None) -> None:
        super().__init__(directory, "Finalization", _MEMORY_BYTES)
        self._end = 0

    def append(self, data: bytes) -> int:
        """Append `data` to the file and return the position at which it begins.

        Raises:
            StorageFull: the disk does not accept the data.
        """
        start, self._end = self._end, self._end + len(data)
        self.write(data)
        return start

    def read_parts(self, places: Sequence[tuple[int, int]], ending: bytes) -> bytes:
        """Read several parts of the file, and return them joined. `ending` is added after each part.

        Args:
            places: position and length in bytes of each part.

        Raises:
            StorageUnavailable: the file is shorter than the data that was written to it.
        """
        self.check_stopped()
        read, number = os.pread, self.file.fileno()
        parts = [read(number, length, position) for position, length in places]
        if sum(map(len, parts)) != sum([length for _, length in places]):
            raise StorageUnavailable(
                f"The scratch file in {self.directory} is shorter than what was written."
            )
        parts.append(b"")
        return ending.join(parts)
