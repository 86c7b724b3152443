"""One object's file, being written or being read, from asynchronous code."""

import asyncio
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from batchwright.storage import disk
from batchwright.storage.base import StorageError

BUFFER = 1024 * 1024
_SYNCED = 32 * 1024 * 1024  # bytes after which the disk is told to begin
T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Runs a blocking call; if cancelled, waits for its end: nobody may close a file another thread uses."""
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()  # taken note of; the cancellation is what the caller hears
        raise
    finally:
        # What failed has this frame in its traceback: with the future in it both, and all that their callers
        # hold, would wait for the garbage collector.
        del running


class NewFile:
    """A file in the scratch folder until `publish`; `discard` is due at the end in any case."""

    def __init__(self, root: Path, scratch: Path, target: Path) -> None:
        self._root = root
        self._path = scratch / f"{os.getpid()}-{token_hex(8)}"
        self._target = target
        self._fd = -1

    def open(self) -> None:
        with disk.explained("create", self._path):
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with disk.explained("write", self._target):
            disk.write_all(self._fd, data)

    def sync(self) -> None:
        """What is written so far; returns when it is durable."""
        with disk.explained("write", self._target):
            os.fdatasync(self._fd)

    def publish(self) -> None:
        with disk.explained("write", self._target):
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)  # some file systems tell only here that the disk is full
            disk.publish(self._path, self._target, self._root)

    def discard(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        with suppress(OSError):  # what cannot be deleted now is swept later; the caller hears why it failed
            self._path.unlink()


class FileWriter:
    """Collects small writes, so that a line does not cost a thread hop.

    Of a large file the disk gets parts while the caller makes the next ones.
    """

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._buffer = bytearray()
        self._unsynced = 0
        self._syncing: asyncio.Future[None] | None = None

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) >= BUFFER and not self._buffer:
            await self._store(data)
            return
        self._buffer += data
        if len(self._buffer) >= BUFFER:
            await self._flush()

    async def finish(self) -> None:
        """All of it is in the file."""
        await self._flush()
        await self._synced()

    async def abandon(self) -> None:
        """Nobody uses the file any more."""
        with suppress(StorageError):
            await self._synced()

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        if data:
            await self._store(data)

    async def _store(self, data: bytes | bytearray | memoryview) -> None:
        await in_thread(lambda: self._file.write(data))
        self._unsynced += len(data)
        if self._unsynced >= _SYNCED and (self._syncing is None or self._syncing.done()):
            await self._synced()
            self._syncing, self._unsynced = asyncio.ensure_future(in_thread(self._file.sync)), 0

    async def _synced(self) -> None:
        """Raises StorageUnavailable where the disk failed meanwhile: it says so only once."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            await syncing


class OpenFile:
    """An object's file being read; it keeps its content though the object be deleted or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.size = 0

    def open(self) -> None:
        """Raises FileNotFoundError for everything that is no regular file."""
        with suppress(NotADirectoryError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            found = os.fstat(self._fd)
            if stat.S_ISREG(found.st_mode):
                self.size = found.st_size
                return
        self.close()
        raise FileNotFoundError(str(self._path))

    def left(self, start: int, length: int | None) -> int:
        """How many of the `length` bytes from `start` there are."""
        there = max(0, self.size - start)
        return there if length is None else min(there, length)

    def read(self, start: int, length: int) -> bytes:
        return disk.read_at(self._fd, start, length) if length else b""

    def detached(self) -> FileIO:
        """What is open, for somebody else to read and close."""
        fd, self._fd = self._fd, -1
        return FileIO(fd, "rb")

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
