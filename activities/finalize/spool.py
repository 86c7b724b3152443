"""A scratch file on local disk that vanishes with its process."""

import os
import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.storage.base import StorageFull, StorageUnavailable

_SPARE_BYTES = 64 * 1024 * 1024


class Spool:
    """Append and read back, from any thread; closing it waits for a thread still at work."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (closed by __exit__)
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._file.close()

    def require(self, needed_bytes: int) -> None:
        """Raises StorageFull unless so much fits, and some more for the others on this disk."""
        free = shutil.disk_usage(self._folder).free
        if free < needed_bytes + _SPARE_BYTES:
            raise StorageFull(
                f"Finalization needs {needed_bytes + _SPARE_BYTES} bytes in {self._folder}, {free} are free: "
                "make room, or set BATCHWRIGHT_SPOOL_DIR to a larger disk."
            )

    def append(self, data: bytes) -> int:
        """The position at which `data` lies now. Raises StorageFull."""
        left = memoryview(data)
        with self._lock:
            start, self._end = self._end, self._end + len(data)
            while left:
                left = left[self._write(left) :]
        return start

    def read_into(self, target: memoryview, position: int) -> None:
        """Fills `target` with what was appended at `position`."""
        with self._lock:
            done = os.preadv(self._file.fileno(), [target], position)
        if done != len(target):
            raise StorageUnavailable(f"The scratch file in {self._folder} gives back less than it got.")

    def _write(self, data: memoryview) -> int:
        try:
            return self._file.write(data) or 0
        except OSError as error:
            raise StorageFull(f"Finalization cannot write to {self._folder}: {error}.") from error
