"""The input on local disk while it is scanned and put into dispatch order."""

import asyncio
import os
from collections.abc import Callable
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

    def _go_on(self) -> None:
        if self._stopped:
            raise SpoolStopped
