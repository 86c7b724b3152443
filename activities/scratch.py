"""A scratch file on local disk, for bytes that are read again before the activity ends."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.storage.base import StorageFull, StorageUnavailable

_SPARE_BYTES = 64 * 1024 * 1024


class Scratch:
    """An unnamed file, `file`: however its process ends, nothing is left behind.

    `whose` begins the messages. Raises StorageUnavailable where the directory cannot be used.
    """

    def __init__(self, directory: Path | None, whose: str) -> None:
        self.directory = directory or Path(tempfile.gettempdir())
        self._whose = whose
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.file = tempfile.TemporaryFile(dir=self.directory, buffering=0)  # noqa: SIM115 (__exit__)
        except OSError as error:
            raise StorageUnavailable(
                f"The spool directory {self.directory} cannot be used: {error}. Set BATCHWRIGHT_SPOOL_DIR."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def require(self, needed_bytes: int) -> None:
        """Raises StorageFull unless so much fits, and some more for the others on this disk."""
        needed, free = needed_bytes + _SPARE_BYTES, shutil.disk_usage(self.directory).free
        if free < needed:
            raise StorageFull(
                f"{self._whose} needs {needed} bytes in {self.directory}, {free} are free: "
                "make room, or set BATCHWRIGHT_SPOOL_DIR to a larger disk."
            )

    def write(self, data: bytes | memoryview) -> None:
        """All of it, at the end. Raises StorageFull."""
        left = memoryview(data)
        try:
            while left:
                left = left[self.file.write(left) or 0 :]
        except OSError as error:
            raise StorageFull(f"{self._whose} cannot write to {self.directory}: {error}.") from error
