"""Reads and writes single files of the local storage, and runs blocking calls in threads."""

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
_SYNC_BYTES = 32 * 1024 * 1024  # a large file is synced in parts of this size
T = TypeVar("T")


async def run_in_thread(call: Callable[[], T]) -> T:
    """Call a blocking function in a thread, and return its result.

    If the caller is cancelled, CancelledError is raised only after the function has returned. The caller can
    therefore not close a file that the function still uses.
    """
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()  # retrieved, so that it is not logged; the caller gets the cancellation
        raise
    finally:
        # The traceback of an error refers to this frame. With the future in the frame, both would form a
        # cycle and keep everything their callers hold until the next garbage collection.
        del running


class UnpublishedFile:
    """A file with the data of a new object. Readers can see the object only after `publish`.

    `open` creates the file in a folder for unfinished files. `publish` moves the file to its final path.
    Always call `discard` at the end. If `publish` was not called, `discard` deletes the file.
    """

    def __init__(self, root: Path, scratch: Path, target: Path) -> None:
        self._root = root
        self._path = scratch / f"{os.getpid()}-{token_hex(8)}"
        self._target = target
        self._fd = -1

    def open(self) -> None:
        with disk.translate_os_errors("create", self._path):
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, disk.FILE_MODE)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with disk.translate_os_errors("write", self._target):
            disk.write_all(self._fd, data)

    def sync(self) -> None:
        """Flush the data to the disk (fsync), so that it survives a crash of the machine."""
        with disk.translate_os_errors("write", self._target):
            os.fdatasync(self._fd)

    def publish(self) -> None:
        with disk.translate_os_errors("write", self._target):
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)  # some file systems report a full disk only here
            disk.publish(self._path, self._target, self._root)

    def discard(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        with suppress(OSError):  # a file that cannot be deleted now is swept later
            self._path.unlink()


class FileWriter:
    """Buffered writer for the file of a new object.

    A large file is flushed to the disk from time to time, while the caller continues to write. After the
    last write, call `finish`. Before the file is discarded, always call `abandon`, even after `finish`.
    """

    def __init__(self, file: UnpublishedFile) -> None:
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
        """Write the rest of the buffer to the file, and wait for the end of a running flush to the disk.

        Raises StorageError if writing or flushing fails.
        """
        await self._flush()
        await self._wait_for_sync()

    async def abandon(self) -> None:
        """Wait until no thread uses the file. Ignore errors of a running flush to the disk."""
        with suppress(StorageError):
            await self._wait_for_sync()

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        if data:
            await self._store(data)

    async def _store(self, data: bytes | bytearray | memoryview) -> None:
        await run_in_thread(lambda: self._file.write(data))
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            await self._wait_for_sync()
            self._syncing, self._unsynced = asyncio.ensure_future(run_in_thread(self._file.sync)), 0

    async def _wait_for_sync(self) -> None:
        """Wait until the running flush to the disk has ended, if there is one.

        Raises StorageUnavailable if the flush failed.
        """
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            await syncing


class OpenFile:
    """The open file of an object. It can be read to its end even if the object is deleted meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.size = 0

    def open(self) -> None:
        """Open the file and set `size`. Raises FileNotFoundError if there is no regular file at the path."""
        with suppress(NotADirectoryError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            found = os.fstat(self._fd)
            if stat.S_ISREG(found.st_mode):
                self.size = found.st_size
                return
        self.close()
        raise FileNotFoundError(str(self._path))

    def left(self, start: int, length: int | None) -> int:
        """Return how many of the `length` bytes from the position `start` exist in the file.

        If `length` is None, return the number of bytes from `start` to the end of the file.
        """
        there = max(0, self.size - start)
        return there if length is None else min(there, length)

    def read(self, start: int, length: int) -> bytes:
        return disk.read_exactly(self._fd, start, length) if length else b""

    def detached(self) -> FileIO:
        """Return the open file. The caller must close it. After this call, `close` does nothing."""
        fd, self._fd = self._fd, -1
        return FileIO(fd, "rb")

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
