"""The input on local disk while it is scanned and put into dispatch order."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from activities.scratch import Scratch

P = ParamSpec("P")
T = TypeVar("T")


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

    def read_line(self, offset: int, length: int) -> bytes:
        """The line of a plan's entry with its newline, also where the file ends without one."""
        self._go_on()
        line = os.pread(self.file.fileno(), length, offset)
        return line if line.endswith(b"\n") else line + b"\n"

    def read_lines(self, places: Iterable[tuple[int, int]]) -> bytes:
        """The lines at these offsets and of these lengths; neighbours in the file are one read."""
        self._go_on()
        parts: list[bytes] = []
        start = end = 0
        for offset, length in places:
            if offset != end:
                parts.append(self._read(start, end))
                start = offset
            end = offset + length
        parts.append(self._read(start, end))
        return b"".join(parts)

    def _read(self, start: int, end: int) -> bytes:
        """From one line's start to one's end; where the file ends without a newline it is added."""
        data = os.pread(self.file.fileno(), end - start, start)
        return data if len(data) == end - start else data + b"\n"

    def _go_on(self) -> None:
        if self._stopped:
            raise SpoolStopped
