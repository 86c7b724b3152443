"""Growing sequences of bytes for one activity. They move to the local disk if they need too much memory."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from batchwright.rules.growing_bytes import GrowingBytes
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.spill.scratch_file import ScratchFile

_MEMORY_BYTES = 64 * 1024 * 1024  # the rows of a million lines, with which ingestion sorts them
_CHUNK_BYTES = 256 * 1024
P = ParamSpec("P")
T = TypeVar("T")


class SpoolStopped(Exception):
    """An exception that stops the threads of a SpillSpace after a call of `run_in_thread` was cancelled."""


class SpillSpace:
    """A creator of growing sequences of bytes. Each sequence is in memory, until the memory is used up.

    Each sequence can use 256 KiB of memory. Beyond that, all sequences share `memory_bytes`. If a sequence
    needs more memory than is left, its bytes are moved to a file. At the end, call `close` to delete files.
    Several threads may use a SpillSpace at the same time, but only one thread at a time may use a sequence.

    Args:
        directory: where the files are created; None for the system's temporary directory.
        purpose: what the files are for, such as "Ingestion". Error messages begin with it.
        memory_bytes: memory that all sequences share; None for 64 MiB.
    """

    def __init__(self, directory: Path | None, purpose: str, memory_bytes: int | None = None) -> None:
        self._directory, self._purpose = directory, purpose
        self._stopped = False
        self._lock = threading.Lock()  # protects `_left`
        self._left = _MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._files: list[ScratchFile] = []

    def new_bytes(self) -> GrowingBytes:
        return _SpilledBytes(self)

    def close(self) -> None:
        for file in self._files:
            file.file.close()

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function `work` in a thread, and return its result. The function uses this SpillSpace.

        If one call is cancelled, all threads of this SpillSpace are stopped: `check_stopped` raises
        SpoolStopped in each of them. The cancelled call raises CancelledError after its thread has stopped,
        so the caller can then close the files. The other calls raise CancelledError, too.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        try:
            return await asyncio.shield(thread)
        except SpoolStopped:
            raise asyncio.CancelledError from None
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

    def check_stopped(self) -> None:
        """Raise SpoolStopped if a call of `run_in_thread` was cancelled. Functions in threads must call this
        regularly.
        """
        if self._stopped:
            raise SpoolStopped

    def take(self, size: int) -> bool:
        """Reserve `size` bytes of the shared memory for a sequence. Return False if less memory is left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
        return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size

    def new_file(self) -> ScratchFile:
        """Create a file on the local disk for a sequence of bytes.

        Raises StorageUnavailable if the directory cannot be used.
        """
        file = ScratchFile(self._directory, self._purpose)
        self._files.append(file)
        return file

    def delete(self, file: ScratchFile) -> None:
        self._files.remove(file)
        file.file.close()


class _SpilledBytes(GrowingBytes):
    """A growing sequence of bytes. Its beginning may be in a file, and its end is in memory.

    Raises, from all methods:
        StorageFull: the disk has too little free space, or does not accept the bytes.
        StorageUnavailable: the file cannot be created or read.
    """

    def __init__(self, space: SpillSpace) -> None:
        super().__init__()
        self._space = space
        self._file: ScratchFile | None = None
        self._in_file = 0  # number of bytes in the file
        self._reserved = 0  # bytes of memory that `space` has granted
        self._most = _CHUNK_BYTES  # bytes in memory after which more memory is needed

    def __len__(self) -> int:
        return self._in_file + len(self._memory)

    def append(self, data: bytes) -> None:
        self._memory += data
        if len(self._memory) >= self._most:
            self._make_room()

    def read(self, start: int, end: int) -> bytes:
        self._space.check_stopped()
        if self._file is None or start >= self._in_file:
            return super().read(start - self._in_file, end - self._in_file)
        stored = self._read_file(start, min(end, self._in_file))
        return stored + super().read(0, end - self._in_file) if end > self._in_file else stored

    def replace(self, start: int, data: bytes) -> None:
        in_file = max(0, min(len(data), self._in_file - start))
        if self._file is not None and in_file:
            try:
                written = os.pwrite(self._file.file.fileno(), data[:in_file], start)
            except OSError as error:
                raise StorageFull(f"{self._file.directory} does not accept more data: {error}.") from error
            if written < in_file:
                raise StorageFull(f"{self._file.directory} does not accept more data.")
        if in_file < len(data):
            super().replace(start + in_file - self._in_file, data[in_file:])

    def clear(self) -> None:
        super().clear()
        self._release()
        self._in_file = 0
        if self._file is not None:
            self._space.delete(self._file)
            self._file = None

    def _make_room(self) -> None:
        """Reserve more memory for new bytes. If that fails, or the sequence already has a file, move all of
        its bytes that are in memory to the file.
        """
        needed = len(self._memory) - self._most + _CHUNK_BYTES
        if self._file is None and self._space.take(needed):
            self._reserved += needed
            self._most += needed
            return
        self._file = self._file or self._space.new_file()
        self._file.require(len(self._memory))
        self._file.file.seek(self._in_file)  # an earlier write may have failed halfway
        self._file.write(memoryview(self._memory))
        self._in_file += len(self._memory)
        self._memory = bytearray()
        self._release()

    def _release(self) -> None:
        """Release all memory that this sequence has reserved in the SpillSpace."""
        self._space.give_back(self._reserved)
        self._reserved, self._most = 0, _CHUNK_BYTES

    def _read_file(self, start: int, end: int) -> bytes:
        assert self._file is not None
        try:
            data = os.pread(self._file.file.fileno(), end - start, start)
        except OSError as error:
            raise StorageUnavailable(f"{self._file.directory} cannot be read: {error}.") from error
        if len(data) != end - start:
            raise StorageUnavailable(f"A file in {self._file.directory} is shorter than what was written.")
        return data
