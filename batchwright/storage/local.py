"""Storage in a local directory, which several processes can share. Each object is one file."""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from itertools import islice
from pathlib import Path
from secrets import token_hex

from batchwright.storage import disk
from batchwright.storage.base import (
    DatedObject,
    ObjectInfo,
    ObjectMissing,
    Storage,
    StorageUnavailable,
    check_key,
    check_prefix,
)
from batchwright.storage.files import FileWriter, OpenFile, UnpublishedFile, run_in_thread

PIECE = 1024 * 1024
_SCRATCH = ".tmp"  # no key starts with a dot
_KEYS_AT_ONCE = 1000


class LocalStorage(Storage):
    """Storage in the directory `root`. An object is a file, and its key is the file's relative path.

    Files of unfinished writes are in the folder `.tmp`.

    Raises:
        StorageUnavailable: the directory cannot be created.
    """

    def __init__(self, root: Path) -> None:
        with disk.translate_os_errors("create the directory", root):
            root.mkdir(mode=disk.FOLDER_MODE, parents=True, exist_ok=True)
            (root / _SCRATCH).mkdir(mode=disk.FOLDER_MODE, exist_ok=True)
            self._root = root.resolve()
        self._scratch = self._root / _SCRATCH

    @staticmethod
    def is_initialized(root: Path) -> bool:
        """Return True if a LocalStorage has used the directory `root` before. Create nothing."""
        return os.path.isdir(root / _SCRATCH)

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[FileWriter, None]:
        file = UnpublishedFile(self._root, self._scratch, self._path(key))
        writer = FileWriter(file)
        try:
            await run_in_thread(file.open)
            yield writer
            await writer.finish()
            await run_in_thread(file.publish)
        finally:
            try:
                await writer.abandon()
            finally:
                await run_in_thread(file.discard)

    async def put(self, key: str, data: bytes) -> None:
        await run_in_thread(lambda: self._put(key, data))

    def _put(self, key: str, data: bytes) -> None:
        file = UnpublishedFile(self._root, self._scratch, self._path(key))
        try:
            file.open()
            file.write(data)
            file.publish()
        finally:
            file.discard()

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        file = OpenFile(self._path(key))
        try:
            await run_in_thread(lambda: self._open(file, key))
            end = start + file.left(start, length)
            for at in range(start, end, PIECE):
                size = min(PIECE, end - at)
                yield await run_in_thread(lambda at=at, size=size: self._read(file, key, at, size))
        finally:
            file.close()

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return await run_in_thread(lambda: self._get(key, start, length))

    def _get(self, key: str, start: int, length: int | None) -> bytes:
        file = OpenFile(self._path(key))
        try:
            self._open(file, key)
            return self._read(file, key, start, file.left(start, length))
        finally:
            file.close()

    async def open_file(self, key: str) -> FileIO:
        return await run_in_thread(lambda: self._opened(key))

    def _opened(self, key: str) -> FileIO:
        file = OpenFile(self._path(key))
        self._open(file, key)
        return file.detached()

    async def stat(self, key: str) -> ObjectInfo:
        return await run_in_thread(lambda: self._stat(key))

    def _stat(self, key: str) -> ObjectInfo:
        file = OpenFile(self._path(key))
        try:
            self._open(file, key)
            return ObjectInfo(key, file.size)
        finally:
            file.close()

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for entry in self._entries(prefix):
            yield ObjectInfo(entry.key, entry.size)

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        async for entry in self._entries(prefix, after):
            yield DatedObject(entry.key, entry.size, datetime.fromtimestamp(entry.changed, UTC))

    async def _entries(self, prefix: str, after: str = "") -> AsyncIterator[disk.FileEntry]:
        found = self._walk(prefix, after)
        while some := await run_in_thread(lambda: list(islice(found, _KEYS_AT_ONCE))):
            for entry in some:
                yield entry

    async def delete(self, key: str) -> None:
        await run_in_thread(lambda: self._remove(key))

    async def delete_prefix(self, prefix: str) -> int:
        return await run_in_thread(lambda: sum(self._remove(entry.key) for entry in self._walk(prefix)))

    async def check(self) -> None:
        key = f"check-{token_hex(8)}"
        try:
            await self.put(key, b"ok")
            if await self.get(key) != b"ok":
                raise StorageUnavailable(
                    f"The storage {str(self._root)!r} returned other bytes than were written."
                )
        except ObjectMissing as error:
            raise StorageUnavailable(
                f"The storage {str(self._root)!r} lost an object that was written."
            ) from error
        finally:
            await self.delete(key)

    async def sweep(self, older_than: timedelta) -> int:
        """Delete files of unfinished writes that have not changed for `older_than`. Return their number."""
        return await run_in_thread(lambda: self._sweep(older_than))

    def _sweep(self, older_than: timedelta) -> int:
        count, horizon = 0, time.time() - older_than.total_seconds()
        with disk.translate_os_errors("clean", self._scratch), os.scandir(self._scratch) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < horizon:
                        os.unlink(entry.path)
                        count += 1
        return count

    def _path(self, key: str) -> Path:
        return disk.resolve_key(self._root, check_key(key))

    def _open(self, file: OpenFile, key: str) -> None:
        with self._reading(key):
            file.open()

    def _read(self, file: OpenFile, key: str, start: int, length: int) -> bytes:
        with self._reading(key):
            return file.read(start, length)

    @contextmanager
    def _reading(self, key: str) -> Generator[None, None, None]:
        """Context manager for a block that reads the object `key`. It translates errors to storage errors.

        If the file is missing, ObjectMissing is raised. If the whole directory is missing because the disk
        is not mounted, StorageUnavailable is raised.
        """
        try:
            with disk.translate_os_errors("read", self._root / key, except_for=FileNotFoundError):
                yield
        except FileNotFoundError:
            self._check_presence()
            raise ObjectMissing(f"There is no object {key!r} in {str(self._root)!r}.") from None

    def _check_presence(self) -> None:
        if not self._scratch.is_dir():
            raise StorageUnavailable(f"The storage {str(self._root)!r} is missing: is it mounted?")

    def _walk(self, prefix: str, after: str = "") -> Iterator[disk.FileEntry]:
        """Yield the files whose key starts with `prefix` and is greater than `after`, sorted by key.

        Raise StorageUnavailable if the disk of the directory is not mounted. Without this check, callers
        would see an empty storage and assume that all files were deleted.
        """
        with disk.translate_os_errors("list", self._root / check_prefix(prefix)):
            yield from disk.walk_files(self._root, prefix, after)
        self._check_presence()

    def _remove(self, key: str) -> int:
        path = self._path(key)
        with disk.translate_os_errors("delete", path):
            return disk.delete_file(path, self._root)
