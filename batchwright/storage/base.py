"""Storage protocol: whole objects that never change, each stored under a key.

The exceptions are:

StorageError           an operation failed
  ObjectMissing        no object has this key; a retry does not help
  StorageUnavailable   disk, network or server failed, for S3 after retries; Temporal retries the activity
    StorageFull        no space is left

Keys are relative paths of plain characters (`is_key`), the same for every kind of storage.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from io import FileIO
from typing import NamedTuple, Protocol


class StorageError(Exception):
    """An operation on an object failed. The message names the key."""


class ObjectMissing(StorageError):
    """There is no object with this key."""


class StorageUnavailable(StorageError):
    """The storage cannot perform the operation now."""


class StorageFull(StorageUnavailable):
    """There is no space left in the storage."""


class ObjectInfo(NamedTuple):
    key: str
    size: int


class DatedObject(NamedTuple):
    """An object and the time when it was written, by the clock of the storage."""

    key: str
    size: int
    written_at: datetime


class ObjectWriter(Protocol):
    async def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Storage(Protocol):
    def writer(self, key: str) -> AbstractAsyncContextManager[ObjectWriter]:
        """Open a writer for a new object, which is written piece by piece.

        When the context ends, the object is complete and durable. After an exception, there is no object.
        """
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Write a new object with the content `data`. When this returns, it is complete and durable."""
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of an object in pieces, from `start` on: at most `length` bytes.

        If `length` is None, the rest of the object is read. Raises ObjectMissing before the first piece if
        there is no such object.
        """
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object from `start` on: at most `length` bytes.

        If `length` is None, the rest of the object is returned. Raises ObjectMissing if there is no such
        object.
        """
        ...

    async def open_file(self, key: str) -> FileIO | None:
        """Return the object as an unbuffered open file; None if this storage has no files.

        The caller closes the file. Raises ObjectMissing if there is no such object.
        """
        return None

    async def stat(self, key: str) -> ObjectInfo:
        """Return the key and the size of an object. Raises ObjectMissing if there is no such object."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield key and size of every object whose key starts with `prefix`, in the order of keys."""
        ...

    def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        """Yield the objects whose key starts with `prefix`, with the time when each was written.

        They are in the order of keys, and start after the key `after`.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object. Nothing happens if there is no such object."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose key starts with `prefix`. Return the number of objects."""
        ...

    async def check(self) -> None:
        """Check that objects can be written, read and deleted, without retries.

        Raises StorageUnavailable if one of these operations fails.
        """
        ...

    async def sweep(self, older_than: timedelta) -> int:
        """Delete the remains of unfinished writes that were abandoned at least `older_than` ago.

        Return the number of these writes. Complete objects are never deleted.
        """
        ...


_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(/{_PART})*")
_PREFIX = re.compile(rf"({_PART}/)*({_PART})?")
_MAX_KEY_CHARS = 1024  # S3's limit


def is_key(text: str) -> bool:
    return len(text) <= _MAX_KEY_CHARS and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Check a key and return it unchanged.

    Raises:
        ValueError: the key is empty, absolute or too long, or a part of it is empty, begins with a dot or
            contains characters that are not allowed.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is not a storage key: keys are parts of [A-Za-z0-9._-] joined by '/'.")
    return key


def check_prefix(prefix: str) -> str:
    """Check the beginning of a key and return it unchanged. Raises ValueError if no key can start with it."""
    if len(prefix) > _MAX_KEY_CHARS or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix!r} is not the beginning of a storage key.")
    return prefix
