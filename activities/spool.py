"""Local disk space of one activity, used by threads that stop when the activity is cancelled."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from batchwright.activities.scratch_file import ScratchFile
from batchwright.activities.spilled_bytes import SpillSpace

P = ParamSpec("P")
T = TypeVar("T")


class SpoolStopped(Exception):
    """Raised in a thread that uses the local disk, to stop the thread after its caller was cancelled."""


class Spool(ScratchFile):
    """A scratch file, and growing sequences of bytes that move to the disk when they become too large.

    Attributes:
        new_bytes: creates a growing sequence of bytes. All sequences are deleted when the spool is closed.
    """

    def __init__(self, directory: Path | None, purpose: str, memory_bytes: int | None = None) -> None:
        super().__init__(directory, purpose)
        self._stopped = False
        self._space = SpillSpace(directory, purpose, self.check_stopped, memory_bytes)
        self.new_bytes = self._space.new_bytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._space.close()
        super().__exit__(kind, error, trace)

    async def off_loop(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that uses this spool in a thread, and return its result.

        If the call is cancelled, it still waits until the thread has stopped, so that the caller can close
        the files.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self._stopped = True
            while not thread.done():
                with suppress(asyncio.CancelledError):  # a second cancel
                    await asyncio.wait([thread])
            if not thread.cancelled():
                thread.exception()  # retrieved, so that asyncio does not log it
            raise
        finally:
            del thread  # its exception holds this frame, and so the data of all callers

    def write(self, data: bytes | memoryview) -> None:
        self.check_stopped()
        super().write(data)

    def check_stopped(self) -> None:
        """Raise SpoolStopped if a call of `off_loop` was cancelled."""
        if self._stopped:
            raise SpoolStopped
