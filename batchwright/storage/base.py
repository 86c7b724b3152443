"""Protocol of the storage. A storage keeps whole objects, each under a key. Objects are never changed.

The exceptions are:

StorageError           an operation failed
  ObjectMissing        there is no object with this key; a retry does not help
  ObjectRefused        S3 does not allow access to an object in a bucket that is not Batchwright's own; a
                       retry helps only after somebody has corrected the cause that the message names
  StorageUnavailable   the disk, the network or the server failed; transient errors of S3 were retried
                       before this error was raised; Temporal retries the activity
    StorageFull        there is no space left
    ObjectChanged      another program replaced the object while Batchwright was reading it

A key is a relative path. Its parts consist of letters, digits, `.`, `_` and `-`. The same keys are valid in
every kind of storage.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from io import FileIO
from typing import NamedTuple, Protocol


class StorageError(Exception):
    """An operation of the storage failed. The message names the object or the storage."""


class ObjectMissing(StorageError):
    """There is no object with this key."""


class ObjectRefused(StorageError):
    """S3 does not allow access to an object in a bucket that is not Batchwright's own.

    Access to other objects may be allowed. The message says what to check.
    """


class StorageUnavailable(StorageError):
    """The storage cannot perform the operation now. A later attempt may succeed."""


class StorageFull(StorageUnavailable):
    """There is no space left in the storage."""


class ObjectChanged(StorageUnavailable):
    """The object was replaced while it was read."""


class ObjectInfo(NamedTuple):
    key: str
    size: int


class DatedObject(NamedTuple):
    """An object with its size and the time when it was written, measured by the clock of the storage."""

    key: str
    size: int
    written_at: datetime


class ObjectWriter(Protocol):
    async def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Storage(Protocol):
    def writer(self, key: str) -> AbstractAsyncContextManager[ObjectWriter]:
        """Context manager for writing a new object piece by piece. Yields the writer.

        When the block ends, the object is complete, and is safe even if the machine crashes. If the block
        raises an exception, no object is written.
        """
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Write a new object with the content `data`. When the call returns, the object is safe even if the
        machine crashes.
        """
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yield bytes of an object in pieces, beginning at the position `start`.

        If `length` is None, all bytes up to the end are read. Otherwise at most `length` bytes are read in
        total. If there is no such object, ObjectMissing is raised before the first piece.
        """
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return at most `length` bytes of an object, from the position `start`.

        If `length` is None, return the rest of the object. Raises ObjectMissing if there is no such object.
        """
        ...

    async def open_file(self, key: str) -> FileIO | None:
        """Return the object as an open, unbuffered file. The caller must close it.

        Return None if this storage does not keep objects as files. Raises ObjectMissing if there is no such
        object.
        """
        return None

    async def stat(self, key: str) -> ObjectInfo:
        """Return the key and the size of an object. Raises ObjectMissing if there is no such object."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the key and the size of every object whose key starts with `prefix`, sorted by key."""
        ...

    def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        """Yield the objects whose key starts with `prefix`, each with the time when it was written.

        The objects are sorted by key. Only keys greater than `after` are included.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete an object. If there is no such object, nothing happens."""
        ...

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every object whose key starts with `prefix`. Return the number of deleted objects."""
        ...

    async def check(self) -> None:
        """Write, read and delete a test object. Raise StorageUnavailable if any of this fails."""
        ...

    async def sweep(self, older_than: timedelta) -> int:
        """Delete the remains of unfinished writes that began at least `older_than` ago.

        Return the number of unfinished writes whose remains were deleted. Complete objects are never deleted.
        """
        ...


_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(/{_PART})*")
_PREFIX = re.compile(rf"({_PART}/)*({_PART})?")
_MAX_KEY_CHARS = 1024  # S3's limit


def is_key(text: str) -> bool:
    return len(text) <= _MAX_KEY_CHARS and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Check the key of an object, and return it unchanged.

    Raises:
        ValueError: the key has more than 1,024 characters. Or a part of the key between slashes is empty,
            has more than 200 characters, begins with `.` or `-`, or contains other characters than letters,
            digits, `.`, `_` and `-`.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is not a storage key: keys are parts of [A-Za-z0-9._-] joined by '/'.")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` unchanged. Raise ValueError if `prefix` cannot be the beginning of a valid key."""
    if len(prefix) > _MAX_KEY_CHARS or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"{prefix!r} is not the beginning of a storage key.")
    return prefix
