"""Scratch file on the local disk for results, until they are written in the order of the input."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from batchwright.activities.scratch_file import ScratchFile
from batchwright.storage.base import StorageUnavailable


class ResultSpool(ScratchFile):
    """Local scratch file to which data is only appended. Any thread may read and write it."""

    def __init__(self, directory: Path | None) -> None:
        super().__init__(directory, "Finalization")
        self._lock = threading.Lock()
        self._end = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            super().__exit__(kind, error, trace)

    def append(self, data: bytes) -> int:
        """Append `data` to the file and return the position at which it begins.

        Raises:
            StorageFull: the disk does not accept the data.
        """
        with self._lock:
            start, self._end = self._end, self._end + len(data)
            self.write(data)
        return start

    def read_parts(self, places: Sequence[tuple[int, int]], ending: bytes) -> bytearray:
        """Read several parts of the file, and return them joined. `ending` is added after each part.

        Args:
            places: position and length in bytes of each part.

        Raises:
            StorageUnavailable: the file is shorter than the data written to it.
        """
        parts = bytearray(sum([length for _, length in places]) + len(places) * len(ending))
        room, at, read = memoryview(parts), 0, os.preadv
        with self._lock:
            number = self.file.fileno()
            for position, length in places:
                end = at + length
                if read(number, [room[at:end]], position) != length:
                    raise StorageUnavailable(
                        f"The scratch file in {self.directory} is shorter than what was written."
                    )
                at = end + len(ending)
                parts[end:at] = ending
        return parts
