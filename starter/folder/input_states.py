"""The folder of all inputs. It has one subdirectory for each state, with the inputs in this state."""

import errno
import fcntl
import os
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Self

from batchwright.starter.folder.input_files import FileName, InputDirectory

_LOCK = ".lock"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_STAGED = ".dropped-"


class FolderError(Exception):
    """The folder cannot be used. The message tells the user what to do."""


class State(StrEnum):
    """The states of an input. The value of a state is the name of the subdirectory for its inputs."""

    WRITING = "input/writing"
    READY = "input/ready"
    PROCESSING = "processing"
    OUTPUT = "output"
    FAILED = "failed"


# Final states come first: an input that has ended is not shown as queued because another one has its name.
_SEARCHED = (State.OUTPUT, State.FAILED, State.PROCESSING, State.READY)


class InputFolder:
    """A context manager for the folder of all inputs, which has a subdirectory for each state.

    Only one process at a time can use a folder. If `create` is True, a missing folder is created. Missing
    subdirectories are always created.

    Each method makes at most one change of the folder. If the process crashes or the method raises OSError,
    the change is either complete or not made at all.

    Raises:
        FolderError: the folder is missing, another process uses it, or its directories cannot be created or
            used.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._path, self._create = path, create
        self._fds: dict[State | None, int] = {}  # by state; None is the folder itself
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            with ExitStack() as opened:
                if self._create:
                    self._path.mkdir(parents=True, exist_ok=True)
                elif not self._path.exists():
                    raise FolderError(
                        f"{self._path} does not exist, so it has no inputs. Check the path, or create it."
                    )
                root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
                opened.callback(os.close, root)
                self._lock(root, opened)
                self._fds[None] = root
                for state in State:
                    self._fds[state] = _open_below(root, state, opened)
                self._open = opened.pop_all()
        except OSError as error:
            raise FolderError(
                f"{self._path / (error.filename or '')} cannot be used for inputs: {error.strerror}."
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def names(self, state: State) -> list[str]:
        """Return the names of the inputs in this state. The order is natural: `input_9` comes before
        `input_10`.
        """
        with os.scandir(self._fds[state]) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted((name for name in found if not name.startswith(".")), key=_natural)

    def state_of(self, name: str) -> State | None:
        """Return the state of the input with this name; None if there is no such input."""
        return next((state for state in _SEARCHED if self._has(state, name)), None)

    @contextmanager
    def directory(self, state: State, name: str) -> Generator[InputDirectory]:
        """Context manager that opens the directory of the input `name`, which is in the state `state`."""
        fd = os.open(name, _DIRECTORY, dir_fd=self._fds[state])
        try:
            yield InputDirectory(fd, name)
        finally:
            os.close(fd)

    def move(self, name: str, source: State, target: State) -> None:
        """Move the input `name` from the state `source` to the state `target`."""
        os.rename(name, name, src_dir_fd=self._fds[source], dst_dir_fd=self._fds[target])

    def move_to_failed(self, entry: str, source: State, name: str) -> str:
        """Move a directory to the failed inputs, rename the directory, and return the new name.

        Args:
            entry: present name of the directory.
            source: state of the input before the move.
            name: new name of the directory. If another input has this name, a number is added.
        """
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        free = next(each for each in names if not self._is_taken(each, besides=(source, entry)))
        os.rename(entry, free, src_dir_fd=self._fds[source], dst_dir_fd=self._fds[State.FAILED])
        return free

    def dropped_files(self) -> Iterator[tuple[State | None, os.DirEntry[str]]]:
        """Yield the files that users have dropped, as pairs of the directory and the file.

        - `(None, file)`: a `*.jsonl` file in the folder itself, compressed or not.
        - `(State.READY, file)`: any file in input/ready.

        Hidden files are skipped. A symbolic link counts as a file.
        """
        for place in (None, State.READY):
            with os.scandir(self._fds[place]) as entries:
                found = sorted(entries, key=lambda entry: _natural(entry.name))
            for entry in found:
                is_hidden, is_input = entry.name.startswith("."), entry.name.endswith(_SUFFIXES)
                if not is_hidden and (is_input or place) and not entry.is_dir(follow_symlinks=False):
                    yield place, entry

    def stage(self, place: State | None, file: str) -> str:
        """Move a dropped file into a hidden directory in `input/writing`.

        Return the name of this directory.

        Args:
            place: directory of the file; None for the folder itself, `State.READY` for input/ready.
            file: name of the file.

        Raises:
            FileExistsError: an earlier file of the same name could not be queued, and is still in the hidden
                directory.
            OSError: the directory cannot be created, or the file cannot be moved.
        """
        suffix = next((each for each in _SUFFIXES if file.endswith(each)), "")
        writing, staged = self._fds[State.WRITING], f"{_STAGED}{file.removesuffix(suffix)}"
        with suppress(FileExistsError):  # a crash has left it, or its file cannot be published
            os.mkdir(staged, dir_fd=writing)
        fd = os.open(staged, _DIRECTORY, dir_fd=writing)
        try:
            os.stat(FileName.INPUT, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(file, FileName.INPUT, src_dir_fd=self._fds[place], dst_dir_fd=fd)
        else:
            why = "an earlier file of this name could not be moved yet"
            raise FileExistsError(errno.EEXIST, why, file)
        finally:
            os.close(fd)
        return staged

    def staged(self) -> list[str]:
        """Return the names of all hidden directories that `stage` has created and that still exist."""
        return sorted(name for name in os.listdir(self._fds[State.WRITING]) if name.startswith(_STAGED))

    def staged_name(self, staged: str) -> str:
        """Return the name of the input in the hidden directory `staged`, which `stage` has created."""
        return staged.removeprefix(_STAGED)

    def publish(self, staged: str) -> None:
        """Queue a dropped file: move its hidden directory, which `stage` returned, to the queued inputs."""
        writing, ready = self._fds[State.WRITING], self._fds[State.READY]
        os.rename(staged, self.staged_name(staged), src_dir_fd=writing, dst_dir_fd=ready)

    def discard(self, staged: str) -> None:
        """Delete the hidden directory `staged`, which must be empty."""
        os.rmdir(staged, dir_fd=self._fds[State.WRITING])

    def _lock(self, root: int, opened: ExitStack) -> None:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=root)
        opened.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                f"Another `batchwright folder` uses {self._path}: stop it, or choose another directory."
            ) from None

    def _is_taken(self, name: str, besides: tuple[State, str]) -> bool:
        states = (state for state in _SEARCHED if (state, name) != besides)
        return any(self._has(state, name) for state in states)

    def _has(self, state: State, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fds[state], follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def _open_below(root: int, path: str, opened: ExitStack) -> int:
    """Open the directory `path` below the directory `root`. If `path` is missing, create the directory.

    `root` and the result are file descriptors.

    Args:
        opened: stack that closes the returned descriptor.

    Raises:
        OSError: the directory cannot be created or opened, is a symbolic link, or is on another file system
            than `root`.
    """
    fd = root
    for part in path.split("/"):
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=fd)
        fd = os.open(part, _DIRECTORY, dir_fd=fd)
        opened.callback(os.close, fd)
    if os.fstat(fd).st_dev != os.fstat(root).st_dev:
        raise OSError(0, "it is on another file system, so inputs cannot be moved to it at once", path)
    return fd


def _natural(name: str) -> list[str | int]:
    """Return a sort key for natural order, in which numbers in a name are compared by value."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]
