"""The bytes of settled lines on local disk until they are written in the order of the input."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from activities.scratch import Scratch
from batchwright.storage.base import StorageUnavailable


class Spool(Scratch):
    """Append and read back, from any thread; closing it waits for a thread still at work."""

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
        """The position at which `data` lies now. Raises StorageFull."""
        with self._lock:
            start, self._end = self._end, self._end + len(data)
            self.write(data)
        return start

    def read_parts(self, places: Sequence[tuple[int, int]], ending: bytes) -> bytearray:
        """What was appended at these positions, of these lengths; `ending` behind each."""
        parts = bytearray(sum([length for _, length in places]) + len(places) * len(ending))
        room, at, read = memoryview(parts), 0, os.preadv
        with self._lock:
            number = self.file.fileno()
            for position, length in places:
                end = at + length
                if read(number, [room[at:end]], position) != length:
                    raise self._lost()
                at = end + len(ending)
                parts[end:at] = ending
        return parts

    def _lost(self) -> Exception:
        return StorageUnavailable(f"The scratch file in {self.directory} gives back less than it got.")
