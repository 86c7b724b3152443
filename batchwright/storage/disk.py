"""File operations of the local storage: blocking, durable, one call per thread hop."""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from batchwright.storage.base import StorageError, StorageFull, StorageUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIES = 50  # of a put that finds its folder pruned again and again


@contextmanager
def explained(doing: str, path: Path, *, but: type[OSError] | tuple[()] = ()) -> Generator[None, None, None]:
    """Turns an OSError, `but` one the caller handles, into the storage's own, naming path and errno."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        text = f"Cannot {doing} {str(path)!r}: {error.strerror or error} ({name})."
        if error.errno in _FULL:
            raise StorageFull(f"{text} Free some space or move the storage.") from error
        raise StorageUnavailable(f"{text} Check the disk and the permissions of the storage.") from error


def inside(root: Path, key: str) -> Path:
    """The path of `key` below `root`.

    Raises:
        StorageError: it or one of its folders is a symbolic link, which might lead out of the storage.
    """
    path = str(root)
    for part in key.split("/"):
        path = f"{path}/{part}"
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            break  # and nothing is below it
        if stat.S_ISLNK(found.st_mode):
            raise StorageError(f"{path!r} of object {key!r} is a symbolic link: remove it.")
    return root / key


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def publish(scratch: Path, target: Path, root: Path) -> None:
    """Gives a finished file its place, durably; a folder that a deletion prunes meanwhile is made again."""
    for last in [False] * _TRIES + [True]:
        try:
            _make_folders(target.parent, root)
            os.rename(scratch, target)
            break
        except FileNotFoundError:
            if last or not scratch.exists():
                raise
    with suppress(FileNotFoundError):  # deleted already by somebody else
        _sync_folder(target.parent)


def _make_folders(folder: Path, root: Path) -> None:
    if folder == root or folder.is_dir():
        return
    _make_folders(folder.parent, root)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path, root: Path) -> int:
    """Deletes the file, then its folders as far up as they are empty; how many files there were.

    `rmdir` refuses a folder that a put has just filled; one that a put is about to fill is made again.
    Without the file its folders may still be there: whoever deleted it was killed in between.
    """
    removed = 1
    try:
        path.unlink()
    except NotADirectoryError:
        return 0
    except FileNotFoundError:
        removed = 0
    prune(path.parent, root)
    return removed


def prune(folder: Path, root: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            raise
        folder = folder.parent


def read_at(fd: int, start: int, length: int) -> bytes:
    """Exactly `length` bytes; objects do not change, so less means a damaged disk."""
    pieces: list[bytes] = []
    while length:
        piece = os.pread(fd, length, start)
        if not piece:
            raise OSError(errno.EIO, "The file is shorter than it says")
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Entry(NamedTuple):
    """`changed` is in Unix seconds."""

    key: str
    size: int
    changed: float


def walk(root: Path, prefix: str, after: str = "") -> Iterator[Entry]:
    """The files whose key starts with `prefix` and comes behind `after`, in the order of keys."""
    folder, slash, begins = prefix.rpartition("/")
    yield from _walk(inside(root, folder) if folder else root, folder + slash, begins, after)


def _walk(folder: Path, key: str, begins: str, after: str) -> Iterator[Entry]:
    for name in _names(folder, begins):
        at = key + name
        if at <= after and not after.startswith(at):
            continue
        if name.endswith("/"):
            yield from _walk(folder / name, at, "", after)
        elif at != after:
            with suppress(FileNotFoundError):
                found = os.lstat(folder / name)
                if stat.S_ISREG(found.st_mode):
                    yield Entry(at, found.st_size, found.st_mtime)


def _names(folder: Path, begins: str) -> list[str]:
    """A folder sorts as its name and a slash: so do the keys below it."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in entries
                if entry.name.startswith(begins) and not entry.name.startswith(".")
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
