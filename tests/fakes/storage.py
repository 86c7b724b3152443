"""Fake object storage in memory. It passes the same tests as the real ones."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from batchwright.storage.base import DatedObject, ObjectInfo, ObjectMissing, Storage, check_key, check_prefix

PIECE = 1024 * 1024


class MemoryWriter:
    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


class MemoryStorage(Storage):
    """An object storage that keeps objects in the dictionary `objects`, which tests may read and change.

    `written` has the write times of objects that must look old. If a test sets `failing` to an exception,
    such as `StorageUnavailable(...)`, each call raises it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, datetime] = {}
        self.failing: Exception | None = None

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        self._enter(check_key(key))
        writer = MemoryWriter()
        yield writer
        self._enter(key)
        self.objects[key] = bytes(writer.data)

    async def put(self, key: str, data: bytes) -> None:
        self._enter(check_key(key))
        self.objects[key] = bytes(data)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data = await self.get(key, start, length)
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._object(key)
        return data[start : None if length is None else start + length]

    async def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._object(key)))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._enter(check_prefix(prefix))
        for key in sorted(self.objects):
            if key.startswith(prefix) and key in self.objects:
                yield ObjectInfo(key, len(self.objects[key]))

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        async for key, size in self.list(prefix):
            if key > after:
                yield DatedObject(key, size, self.written.get(key, datetime.now(UTC)))

    async def delete(self, key: str) -> None:
        self._enter(check_key(key))
        self.objects.pop(key, None)

    async def delete_prefix(self, prefix: str) -> int:
        keys = [info.key async for info in self.list(prefix)]
        for key in keys:
            del self.objects[key]
        return len(keys)

    async def check(self) -> None:
        self._enter("")

    async def sweep(self, older_than: timedelta) -> int:
        self._enter("")
        return 0

    def _object(self, key: str) -> bytes:
        self._enter(check_key(key))
        if key not in self.objects:
            raise ObjectMissing(f"There is no object {key!r}.")
        return self.objects[key]

    def _enter(self, key: str) -> None:
        if self.failing is not None:
            raise self.failing
