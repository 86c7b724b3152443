"""The data directory of a stack: one `dev` at a time, and where everything lies."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from starter.stack.errors import StackError
from starter.stack.state import StackInfo, end_leftovers, note_processes, write_whole


class StackDirectory:
    """Open from `open()` to `close()`, or to the death of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.logs = self.path / "logs"
        self.objects = self.path / "objects"
        self.postgres = self.path / "postgres"
        self.temporal = self.path / "temporal.db"
        self._info = self.path / "dev.json"
        self._exports = self.path / "dev.env"
        self._processes = self.path / "processes.json"
        self._lock: TextIO | None = None

    def open(self) -> int:
        """Make it ours; how many processes of a killed `dev` were ended.

        Raises:
            StackError: another `dev` has it, or it cannot be written.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.objects.mkdir(exist_ok=True)
            self._lock = self._locked()
            write_whole(self._info, "")  # that it can be written, before a later start depends on it
            self._info.unlink()
        except OSError as error:
            raise StackError(
                f"{error.filename or self.path} cannot be written: {error.strerror}. "
                "Choose another directory with --data."
            ) from error
        return end_leftovers(self._processes)

    def close(self) -> None:
        if self._lock is not None:
            self._info.unlink(missing_ok=True)
            self._exports.unlink(missing_ok=True)
            self._processes.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def publish(self, info: StackInfo) -> None:
        write_whole(self._info, info.model_dump_json() + "\n")

    def publish_exports(self, text: str) -> None:
        """For a shell; like the other it may hold a password."""
        write_whole(self._exports, text)

    def note(self, pids: list[int]) -> None:
        note_processes(self._processes, pids)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _locked(self) -> TextIO:
        lock = (self.path / "dev.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StackError(
                f"`batchwright dev` runs on {self.path} already (pid {holder}): "
                "stop it, or choose another directory with --data."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock
