"""The input on local disk while it is scanned and put into dispatch order."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar

from activities.scratch import Scratch
from batchwright.storage.base import StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")

_NOWHERE = (-1, 0)  # no neighbour of any line


class SpoolStopped(Exception):
    """Nobody waits any longer for what is read here."""


class Spool(Scratch):
    def __init__(self, directory: Path | None) -> None:
        super().__init__(directory, "Ingestion")
        self._stopped = False

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

    def write(self, data: bytes | memoryview) -> None:
        self._go_on()
        super().write(data)

    def takes(self, file: FileIO) -> bool:
        """Whether the input's own file, closed with the spool, serves as well as a copy of it.

        It does on the same file system: another one may be far away, and lines are read in any order.
        """
        if os.fstat(file.fileno()).st_dev != os.fstat(self.file.fileno()).st_dev:
            file.close()
            return False
        self.file.close()
        self.file = file
        return True

    def read_line(self, offset: int, length: int) -> bytes:
        """The line of a plan's entry with its newline, also where the file ends without one.

        Raises StorageUnavailable.
        """
        self._go_on()
        try:
            line = os.pread(self.file.fileno(), length, offset)
        except OSError as error:
            raise _unreadable(error) from error
        if (missing := length - len(line)) > 1:
            raise _unreadable(_cut_off(missing, offset))
        return line + b"\n" if missing else line

    def read_lines(self, places: Sequence[tuple[int, int]]) -> bytearray:
        """The same for the lines at these offsets and of these lengths; neighbours are one read."""
        self._go_on()
        try:
            return self._read_lines(places)
        except OSError as error:
            raise _unreadable(error) from error

    def _read_lines(self, places: Sequence[tuple[int, int]]) -> bytearray:
        lines = bytearray(sum([length for _, length in places]))
        room, number = memoryview(lines), self.file.fileno()
        start = end = filled = 0
        for offset, length in (*places, _NOWHERE):
            if offset != end:
                part = room[filled : filled + end - start]
                if (missing := len(part) - os.preadv(number, [part], start)) > 1:
                    raise _cut_off(missing, start)
                if missing:
                    part[-1:] = b"\n"  # the file ends without one
                filled += len(part)
                start = offset
            end = offset + length
        return lines

    def _go_on(self) -> None:
        if self._stopped:
            raise SpoolStopped


def _cut_off(missing: int, offset: int) -> OSError:
    return OSError(errno.EIO, f"{missing} bytes are missing at byte {offset}")


def _unreadable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(f"Ingestion cannot read the input's lines again: {error}.")
