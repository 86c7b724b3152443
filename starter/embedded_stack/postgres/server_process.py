"""Starts and stops the embedded PostgreSQL server. Its programs are in a Python package. POSIX systems only.

If a server is already running on the data, no second server is started.
"""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from batchwright.starter.embedded_stack.directory import UMASK, open_private
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.ports import LOOPBACK, free_port
from batchwright.starter.embedded_stack.postgres import installation
from batchwright.starter.embedded_stack.postgres.installation import (
    clean_environment,
    create_cluster,
    password_file,
)

_DEFAULTS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
}
_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.25
# Messages in the server's log after which a later attempt can succeed. The first one means: a process of a
# killed server still runs. PostgreSQL protects the data from it, so never delete postmaster.pid to go on.
_TRANSIENT_ERRORS = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')
_PORT_IN_USE = "could not bind"
_ROOTS_SUBSTITUTE = "nobody"  # user that runs the server if this process runs as root


@dataclass(frozen=True)
class RunningServer:
    pid: int
    port: int
    ours: bool  # False for a server that a killed process left running


class EmbeddedPostgres:
    """A PostgreSQL server on 127.0.0.1 that stores its data in the directory `root`.

    The file `password` in `root` contains the random password of the server. If a server is already running
    on this data, for example because its starter was killed, this object uses that server.

    Args:
        port: TCP port; None selects a free port. A restart by this object uses the same port again.
        settings: settings of PostgreSQL. They replace the defaults.
        log: file to which the server's output is appended; None for `postgres.log` in `root`.
        start_timeout: maximum duration of a start in seconds.
    """

    def __init__(
        self,
        root: Path,
        port: int | None = None,
        *,
        settings: dict[str, str] | None = None,
        log: Path | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self.root = root.resolve()
        self.data = self.root / "data"
        self.log = log or self.root / "postgres.log"
        self.running: RunningServer | None = None
        self._port = port
        self._settings = _DEFAULTS | (settings or {})
        self._start_timeout = start_timeout
        self._runner = installation.find_server_user(_ROOTS_SUBSTITUTE)
        self._bin = installation.find_binaries()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:{password_file(self.root).read_text()}@{LOOPBACK}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        return self._require_running().pid

    @property
    def port(self) -> int:
        return self._require_running().port

    def start(self) -> Self:
        """Start the server, wait until it accepts connections, and return this object.

        Raises:
            StackError: the server did not start. The message contains the reason.
        """
        installation.prepare_directory(self.root, self._runner)
        self._bin = installation.runnable_binaries(self._bin, self._runner)
        with installation.exclusively(self.root / ".lock"):
            found = self._running_server()
            self._drop_ended_process()
            self.running = found or self._launch()
        self._port = self.running.port
        return self

    def is_alive(self) -> bool:
        """Return True if the main process of the server is running."""
        if self._process is not None:
            return self._process.poll() is None
        return self.running is not None and _exists(self.running.pid)

    def stop(self, timeout: float = 30.0, *, adopted_too: bool = False) -> None:
        """Stop the server with a fast shutdown. After `timeout` seconds, try an immediate shutdown.

        Both kinds of shutdown keep all committed data. Afterwards, the attribute `running` is None if the
        server has ended.

        Args:
            adopted_too: True to stop the server even if another process started it. False to stop only a
                server that this object started.
        """
        if self.running is None and self._process is None:
            return
        if self._process is None and not adopted_too:
            return
        if self._signal_and_wait(signal.SIGINT, timeout) or self._signal_and_wait(signal.SIGQUIT, 10.0):
            self._drop_ended_process()
            self.running = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _require_running(self) -> RunningServer:
        if self.running is None:
            raise StackError(f"PostgreSQL in {self.root} is not started.")
        return self.running

    def _running_server(self) -> RunningServer | None:
        """Return the server that is already running on this data directory; None if no server responds."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid, port, status = int(lines[0]), int(lines[3]), lines[7].strip()
        except (OSError, ValueError, IndexError):
            return None
        if status != "ready" or not _exists(pid):
            return None
        # The process id may belong to another process by now, so check that a server answers.
        check = [self._bin / "pg_isready", "-q", "-h", LOOPBACK, "-p", str(port)]
        answers = subprocess.run(check, env=clean_environment(), cwd="/").returncode == 0
        return RunningServer(pid, port, ours=False) if answers else None

    def _launch(self) -> RunningServer:
        create_cluster(self.root, self._bin, self._runner)
        end = time.monotonic() + self._start_timeout
        while True:
            port = self._port or free_port()
            mark = self.log.stat().st_size if self.log.exists() else 0
            self._process = self._spawn(port)
            if self._is_ready(self._process, end):
                return RunningServer(self._process.pid, port, ours=True)
            with self.log.open("rb") as log:
                log.seek(mark)
                output = log.read().decode(errors="replace")
            self._drop_ended_process()
            is_transient = any(text in output for text in _TRANSIENT_ERRORS) or (
                self._port is None and _PORT_IN_USE in output
            )
            if time.monotonic() > end or not is_transient:
                raise StackError(self._failure_message(output, port), output[-2000:].strip())
            time.sleep(_RETRY_SECONDS)
            found = self._running_server()
            if found is not None:
                return found

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        options = [f"--{name}={value}" for name, value in {**self._settings, "port": str(port)}.items()]
        with (
            open(self.log, "ab", opener=open_private) as out,
            installation.reachable(self.root, self._runner) as (root, descriptors),
        ):
            # A session of its own, because Ctrl-C must reach only the starter, which stops PostgreSQL last.
            return subprocess.Popen(
                [str(self._bin / "postgres"), "-D", f"{root}/{self.data.name}", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=clean_environment(),
                cwd="/",
                start_new_session=True,
                pass_fds=descriptors,
                user=self._runner.uid,
                group=self._runner.gid,
                extra_groups=self._runner.groups,
                umask=UMASK,
            )

    def _is_ready(self, process: subprocess.Popen[bytes], end: float) -> bool:
        while process.poll() is None:
            found = self._running_server()
            if found is not None and found.pid == process.pid:
                return True
            if time.monotonic() > end:
                self.stop()
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def _failure_message(self, output: str, port: int) -> str:
        if _PORT_IN_USE in output:
            why = "it is in use" if "in use" in output else "the system does not permit it"
            return f"PostgreSQL cannot listen on port {port}: {why}."
        fatal = [line for line in output.splitlines() if "FATAL" in line or "PANIC" in line]
        why = fatal[-1].split("FATAL:")[-1].strip() if fatal else "no reason given"
        return f"PostgreSQL did not start: {why} (log: {self.log})."

    def _signal_and_wait(self, number: signal.Signals, seconds: float) -> bool:
        """Send the signal `number` to the server. Return True if the server ends within `seconds`."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)
            else:
                os.kill(self.pid, number)
        while self.is_alive():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _drop_ended_process(self) -> None:
        """Forget the server process that this object started, if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None


def _exists(pid: int) -> bool:
    try:
        # Many containers have no init process that collects orphans, so an ended server remains as a zombie.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
