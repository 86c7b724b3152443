"""The bytes of settled lines on local disk until they are written in the order of the input."""

import os
import threading
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

    def read_into(self, target: memoryview, position: int) -> None:
        """Fills `target` with what was appended at `position`."""
        with self._lock:
            done = os.preadv(self.file.fileno(), [target], position)
        if done != len(target):
            raise StorageUnavailable(f"The scratch file in {self.directory} gives back less than it got.")
