"""Blocking file operations of the local storage."""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from batchwright.storage.base import StorageError, StorageFull, StorageUnavailable

# Only the user who runs the processes may read prompts and responses, whatever the umask is.
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_RENAMES = 50  # attempts of a write whose folder is removed again and again


@contextmanager
def translate_os_errors(
    action: str, path: Path, *, except_for: type[OSError] | tuple[()] = ()
) -> Generator[None, None, None]:
    """Context manager that turns an OSError into a StorageError. The message names the path and the error.

    Args:
        action: what the block does. The message begins with "Cannot `action` `path`".
        path: the file or folder that the block uses.
        except_for: class of errors that are raised unchanged; () for none.
    """
    try:
        yield
    except except_for:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        text = f"Cannot {action} {str(path)!r}: {error.strerror or error} ({name})."
        if error.errno in _FULL:
            raise StorageFull(f"{text} Free some space or move the storage.") from error
        raise StorageUnavailable(f"{text} Check the disk and the permissions of the storage.") from error


def resolve_key(root: Path, key: str) -> Path:
    """Return the path of the object `key` below the folder `root`.

    Raises:
        StorageError: the path contains a symbolic link, which could point to a place outside of the storage.
    """
    path = str(root)
    for part in key.split("/"):
        path = f"{path}/{part}"
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            break  # nothing exists below it
        if stat.S_ISLNK(found.st_mode):
            raise StorageError(f"{path!r} of object {key!r} is a symbolic link: remove it.")
    return root / key


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def publish(scratch: Path, target: Path, root: Path) -> None:
    """Move the complete file `scratch` to its final path `target`. Missing folders below `root` are created.

    The move itself survives a crash of the machine. The data in the file survives only if the caller called
    fsync before.
    """
    for last in [False] * _MAX_RENAMES + [True]:
        try:
            _make_folders(target.parent, root)
            os.rename(scratch, target)
            break
        except FileNotFoundError:
            if last or not scratch.exists():
                raise
    with suppress(FileNotFoundError):  # another process has deleted it already
        _sync_folder(target.parent)


def _make_folders(folder: Path, root: Path) -> None:
    if folder == root or folder.is_dir():
        return
    _make_folders(folder.parent, root)
    with suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def delete_file(path: Path, root: Path) -> int:
    """Delete a file, and then its parent folders below `root` if they are empty.

    Return 1 if the file existed, and 0 if not. Empty folders are deleted even if the file did not exist. This
    is safe, because `publish` creates missing folders again.
    """
    removed = 1
    try:
        path.unlink()
    except NotADirectoryError:
        return 0
    except FileNotFoundError:
        removed = 0
    remove_empty_folders(path.parent, root)
    return removed


def remove_empty_folders(folder: Path, root: Path) -> None:
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


def read_exactly(fd: int, start: int, length: int) -> bytes:
    """Return exactly `length` bytes of the open file `fd`, beginning at the position `start`.

    Raises OSError if the file ends earlier, which means that the disk is damaged.
    """
    pieces: list[bytes] = []
    while length:
        piece = os.pread(fd, length, start)
        if not piece:
            raise OSError(errno.EIO, "The file is shorter than it says")
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class FileEntry(NamedTuple):
    """One file of the storage. `changed` is the time of its last change, in Unix seconds."""

    key: str
    size: int
    changed: float


def walk_files(root: Path, prefix: str, after: str) -> Iterator[FileEntry]:
    """Yield the files in the storage directory `root` whose key starts with `prefix` and is greater than
    `after`.

    The files are sorted by key, which is the path relative to `root`.
    """
    folder, slash, name_prefix = prefix.rpartition("/")
    yield from _walk_folder(resolve_key(root, folder) if folder else root, folder + slash, name_prefix, after)


def _walk_folder(folder: Path, key: str, name_prefix: str, after: str) -> Iterator[FileEntry]:
    for name in _names(folder, name_prefix):
        at = key + name
        if at <= after and not after.startswith(at):
            continue
        if name.endswith("/"):
            yield from _walk_folder(folder / name, at, "", after)
        elif at != after:
            with suppress(FileNotFoundError):
                found = os.lstat(folder / name)
                if stat.S_ISREG(found.st_mode):
                    yield FileEntry(at, found.st_size, found.st_mtime)


def _names(folder: Path, name_prefix: str) -> list[str]:
    """Return the names in a folder that start with `name_prefix`, sorted. Return [] if there is no such
    folder.

    A slash is added to the names of subfolders before sorting. The order is then the same as the order of
    the keys: `a.txt` before `a/b`.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in entries
                if entry.name.startswith(name_prefix) and not entry.name.startswith(".")
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
