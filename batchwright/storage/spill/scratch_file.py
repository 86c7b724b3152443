"""Unnamed scratch file on the local disk, for data that is written once and read later."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.storage.base import StorageFull, StorageUnavailable

_SPARE_BYTES = 64 * 1024 * 1024


class ScratchFile:
    """An unnamed file on the local disk. The system deletes it when the process ends, even after a crash.

    Args:
        directory: where the file is created; None for the system's temporary directory.
        purpose: what the file is for, such as "Ingestion". Error messages begin with it.

    Raises:
        StorageUnavailable: the directory cannot be used.
    """

    def __init__(self, directory: Path | None, purpose: str) -> None:
        self.directory = directory or Path(tempfile.gettempdir())
        self._purpose = purpose
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        """Check that the disk has `needed_bytes` free, and 64 MiB more for other programs.

        Raise StorageFull if not.
        """
        needed, free = needed_bytes + _SPARE_BYTES, shutil.disk_usage(self.directory).free
        if free < needed:
            raise StorageFull(
                f"{self._purpose} needs {needed} bytes in {self.directory}, {free} are free: "
                "make room, or set BATCHWRIGHT_SPOOL_DIR to a larger disk."
            )

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`. Raise StorageFull if the disk does not accept it."""
        left = memoryview(data)
        try:
            while left:
                left = left[self.file.write(left) or 0 :]
        except OSError as error:
            raise StorageFull(f"{self._purpose} cannot write to {self.directory}: {error}.") from error
