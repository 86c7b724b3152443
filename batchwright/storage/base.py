"""What a storage is: whole immutable objects under keys.

StorageError
  ObjectMissing        no such key; no retry brings it
  StorageUnavailable   disk, network or server, after the retries of S3; then by whoever called (Temporal)
  StorageFull          no space left: a StorageUnavailable
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from io import FileIO
from typing import NamedTuple, Protocol


class StorageError(Exception):
    """Something about an object's storage; the message names the key."""


class ObjectMissing(StorageError):
    """No object lies under the key."""


class StorageUnavailable(StorageError):
    """The storage cannot do it now."""


class StorageFull(StorageUnavailable):
    """There is no space left."""


class ObjectInfo(NamedTuple):
    key: str
    size: int


class DatedObject(NamedTuple):
    """`written_at` is when its writer began (S3) or ended (a directory), by the storage's clock."""

    key: str
    size: int
    written_at: datetime


class ObjectWriter(Protocol):
    async def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Storage(Protocol):
    def writer(self, key: str) -> AbstractAsyncContextManager[ObjectWriter]:
        """A new object, written piece by piece in bounded memory.

        It exists, whole and durable, when the context ends; an exception inside leaves nothing.
        """
        ...

    async def put(self, key: str, data: bytes) -> None:
        """A new object at once; the same guarantees."""
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """The object's bytes from `start`, at most `length`, in pieces. Raises ObjectMissing at the first."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The same in one piece; a range past the end gives what there is."""
        ...

    async def opened(self, key: str) -> FileIO | None:
        """The object as a file, unbuffered, for the caller to close; None where objects are no files.

        It keeps its content though the object be deleted. Raises ObjectMissing.
        """
        return None

    async def stat(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in the order of keys."""
        ...

    def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        """The same with the time each was written, from behind the key `after` on."""
        ...

    async def delete(self, key: str) -> None:
        """Deleting what is not there is fine."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes every object below `prefix`; how many there were."""
        ...

    async def check(self) -> None:
        """Whether objects can be written, read and deleted. Raises StorageUnavailable, without any retry."""
        ...

    async def sweep(self, older_than: timedelta) -> int:
        """Clears what writers that died that long ago left unfinished; how many. No object is touched."""
        ...
