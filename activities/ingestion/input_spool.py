"""Spool: the local copy of the input.

Its lines are checked first, then read again in the order of sending.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from batchwright.activities.scratch_file import ScratchFile
from batchwright.activities.spilled_bytes import SpillSpace
from batchwright.storage.base import StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")

_NO_LINE = (-1, 0)  # a position that is adjacent to no line


class SpoolStopped(Exception):
    """Raised in a thread that uses the local file, to stop the thread after its caller was cancelled."""


class InputSpool(ScratchFile):
    def __init__(self, directory: Path | None) -> None:
        super().__init__(directory, "Ingestion")
        self._stopped = False
        self._space = SpillSpace(directory, "Ingestion", self._check_stopped)
        self.new_bytes = self._space.new_bytes  # makes the place for what ingestion stores of each line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._space.close()
        super().__exit__(kind, error, trace)

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that uses this file in a thread, and return its result.

        If the call is cancelled, it still waits until the thread has stopped, so that the caller can close
        the file.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait([thread])
            if not thread.cancelled():
                thread.exception()  # retrieved, so that asyncio does not log it
            raise

    def write(self, data: bytes | memoryview) -> None:
        self._check_stopped()
        super().write(data)

    def use_file(self, file: FileIO) -> bool:
        """Use the input's own file instead of a copy. The spool closes this file at its end.

        Return False if the file is on another file system than the spool, which may be too slow. The file is
        then closed now.
        """
        if os.fstat(file.fileno()).st_dev != os.fstat(self.file.fileno()).st_dev:
            file.close()
            return False
        self.file.close()
        self.file = file
        return True

    def read_line(self, offset: int, length: int) -> bytes:
        """Return the line at `offset`, with a newline.

        If the last line of the file has no newline, a newline is added to it.

        Args:
            length: length in bytes, including the newline.

        Raises:
            StorageUnavailable: the file cannot be read or is too short.
        """
        self._check_stopped()
        try:
            line = os.pread(self.file.fileno(), length, offset)
        except OSError as error:
            raise _unreadable(error) from error
        if (missing := length - len(line)) > 1:
            raise _unreadable(_truncated(missing, offset))
        return line + b"\n" if missing else line

    def read_lines(self, positions: Sequence[tuple[int, int]]) -> bytearray:
        """Read the lines at these positions, and return them joined.

        A position is an offset and a length in bytes. Adjacent lines are read together.

        Raises:
            StorageUnavailable: the file cannot be read or is too short.
        """
        self._check_stopped()
        try:
            return self._read_lines(positions)
        except OSError as error:
            raise _unreadable(error) from error

    def _read_lines(self, positions: Sequence[tuple[int, int]]) -> bytearray:
        lines = bytearray(sum([length for _, length in positions]))
        view, number = memoryview(lines), self.file.fileno()
        start = end = filled = 0
        for offset, length in (*positions, _NO_LINE):
            if offset != end:
                part = view[filled : filled + end - start]
                if (missing := len(part) - os.preadv(number, [part], start)) > 1:
                    raise _truncated(missing, start)
                if missing:
                    part[-1:] = b"\n"  # the file ends without a newline
                filled += len(part)
                start = offset
            end = offset + length
        return lines

    def _check_stopped(self) -> None:
        if self._stopped:
            raise SpoolStopped


def _truncated(missing: int, offset: int) -> OSError:
    return OSError(errno.EIO, f"{missing} bytes are missing at byte {offset}")


def _unreadable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(f"Ingestion cannot read the input's lines again: {error}.")
