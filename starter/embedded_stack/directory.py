"""Data directory of an embedded stack: its lock, the description of the running stack, and process ids.

The embedded stack is the set of services that `batchwright dev` and `demo` start.
"""

import fcntl
import os
from pathlib import Path
from typing import TextIO

import psutil
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from batchwright.starter.embedded_stack.errors import StackError

_GRACE_SECONDS = 2.0


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProcessIds(_FrozenModel):
    dev: int
    temporal: int
    postgres: int
    simulator: int | None
    api: list[int]
    worker: list[int]


class StackInfo(_FrozenModel):
    """The addresses and process ids of a running stack. The file `dev.json` and `dev --json` contain them as
    JSON.
    """

    pages: str | None  # URL of the pages for browsers; None if they are off
    api: str
    temporal: str
    namespace: str
    ui: str
    postgres: str
    simulator: str | None
    data: str
    pids: ProcessIds
    metrics: list[str]  # URLs for Prometheus: first the API's, then one per worker


class ProcessRecord(_FrozenModel):
    """The id and the start time of a process. The start time is in Unix seconds.

    Both are needed to identify the process, because the system can give the same id to a later process.
    """

    pid: int
    created: float


class ProcessRecords(RootModel[list[ProcessRecord]]):
    pass


def write_atomically(file: Path, text: str) -> None:
    """Replace the content of a file. A reader sees either the old or the new content, never a mixture.

    Only the owner may read the file, because it may contain a password.
    """
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    temporary.replace(file)


def record_processes(file: Path, pids: list[int]) -> None:
    """Write to `file` the id and the start time of each process in `pids` that is running.

    If the command that runs the stack is killed, the recorded processes can continue to run. The next start
    of the stack calls `end_leftovers` to end these processes.
    """
    records: list[ProcessRecord] = []
    for pid in pids:
        try:
            records.append(ProcessRecord(pid=pid, created=psutil.Process(pid).create_time()))
        except psutil.Error:
            continue
    write_atomically(file, ProcessRecords(records).model_dump_json())


def end_leftovers(file: Path) -> int:
    """End the processes that are recorded in `file` and are still running. Return their number."""
    try:
        records = ProcessRecords.model_validate_json(file.read_text()).root
    except (FileNotFoundError, ValidationError):
        return 0
    left = [process for record in records if (process := _recorded_process(record)) is not None]
    for process in left:
        process.terminate()
    _, remaining = psutil.wait_procs(left, timeout=_GRACE_SECONDS)
    for process in remaining:
        process.kill()
    psutil.wait_procs(remaining, timeout=_GRACE_SECONDS)
    return len(left)


def _recorded_process(record: ProcessRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        return process if abs(process.create_time() - record.created) < 1.0 else None
    except psutil.Error:
        return None


UMASK = 0o077  # umask of processes that write files themselves


def open_private(path: str, flags: int) -> int:
    """Open a file. If the file is new, only its owner may read it.

    Pass this function to `open()` as `opener`.
    """
    return os.open(path, flags, 0o600)


class StackDirectory:
    """The data directory of one stack, with the paths of its files.

    `open()` locks the directory. `close()`, or the end of the process, unlocks it.
    """

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
        """Create and lock the directory. End leftover processes, and return their number.

        If an earlier command in this directory was killed, the processes that it started are leftovers.

        Raises:
            StackError: another `dev` uses the directory, or the directory cannot be written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self.objects.mkdir(mode=0o700, exist_ok=True)
            self._lock = self._lock_file()
            write_atomically(self._info, "")  # fail now if the directory cannot be written
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

    def write_info(self, info: StackInfo) -> None:
        write_atomically(self._info, info.model_dump_json() + "\n")

    def write_exports(self, text: str) -> None:
        """Write shell exports to `dev.env`. Users load this file in their shell with `source`."""
        write_atomically(self._exports, text)

    def record(self, pids: list[int]) -> None:
        record_processes(self._processes, pids)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _lock_file(self) -> TextIO:
        lock = open(self.path / "dev.lock", "a+", opener=open_private)  # noqa: SIM115 (close)
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
