"""The input on local disk while it is scanned and put into dispatch order."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from batchwright.storage.base import StorageFull, StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")
_SPARE_BYTES = 64 * 1024 * 1024


class SpoolStopped(Exception):
    """Nobody waits any longer for what is read here."""


class Spool:
    """An unnamed file: however its process ends, nothing is left behind.

    Raises StorageFull where `needed_bytes` and some more for others do not fit, StorageUnavailable where the
    directory cannot be used.
    """

    def __init__(self, directory: Path | None, needed_bytes: int) -> None:
        self._directory = directory or Path(tempfile.gettempdir())
        self._stopped = False
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._require(needed_bytes + _SPARE_BYTES)
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise StorageUnavailable(
                f"The spool directory {self._directory} cannot be used: {error}. Set BATCHWRIGHT_SPOOL_DIR."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` on the spool in a thread, beside the event loop.

        Cancelled, it waits until the thread has stopped: the file is closed next.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait([thread])
            if not thread.cancelled():
                thread.exception()  # taken, or asyncio would report it as lost
            raise

    def write(self, data: bytes) -> None:
        self._go_on()
        try:
            self._file.write(data)
        except OSError as error:
            raise self._full(error) from error

    def finish(self) -> None:
        """To be called before the first read."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error

    def read_line(self, offset: int, length: int) -> bytes:
        """The line of a plan's entry with its newline, also where the file ends without one."""
        self._go_on()
        line = os.pread(self._file.fileno(), length, offset)
        return line if line.endswith(b"\n") else line + b"\n"

    def _go_on(self) -> None:
        if self._stopped:
            raise SpoolStopped

    def _full(self, error: OSError) -> StorageFull:
        return StorageFull(f"Ingestion cannot write to {self._directory}: {error}.")

    def _require(self, needed_bytes: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if free < needed_bytes:
            raise StorageFull(
                f"Ingestion needs {needed_bytes} bytes in {self._directory}, {free} are free: "
                "make room, or set BATCHWRIGHT_SPOOL_DIR to a larger disk."
            )
