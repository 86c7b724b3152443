"""Python programs in processes that are forked from a server, which has imported their libraries.

A test that is about the start of a process, such as its imports, needs a new interpreter instead.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Self

from batchwright.starter.embedded_stack.postgres.installation import exclusively
from tests.constants import VARIABLES
from tests.guard import environment_of_the_run
from tests.process_server import ANSWER, LOCK, Program
from tests.run_folder import run_folder

_starting = threading.Lock()  # two programs at once must not start two servers


class ForkedProcess:
    """A process that runs `python -m MODULE ARGUMENTS`, with the methods of `subprocess.Popen`.

    Its output on stderr can be read from a pipe while it runs. Its output on stdout is available when it has
    ended.

    Args:
        program: the module and its arguments.
        imports: modules that are imported by the server from which the process is forked. They have the
            constants in `environment` (`tests.constants`).
    """

    def __init__(
        self, program: Sequence[str], imports: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        module, *arguments = program
        constants = tuple((name, environment[name]) for name in VARIABLES if name in environment)
        with _starting:
            server = _server(tuple(imports), constants)
        request = Program(
            module=module, arguments=arguments, environment=dict(environment), folder=os.getcwd()
        )
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 - `__exit__` closes it
        reading, writing = os.pipe()
        self.stderr = os.fdopen(reading, encoding="utf-8", errors="replace")
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(server.socket))
        socket.send_fds(self._connection, [json.dumps(request).encode()], [self._stdout.fileno(), writing])
        os.close(writing)
        self.pid = self._answer()
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end of the process."""
        self.stderr.close()
        self.wait()
        self._stdout.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code. It is negative after a signal.

        Args:
            timeout: raise TimeoutError after this number of seconds.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = self._answer()
            self._connection.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait until the process has ended, and return the output that was not read: stdout, stderr."""
        errors = self.stderr.read()
        self.wait()
        self._stdout.seek(0)
        return self._stdout.read().decode(), errors

    def _answer(self) -> int:
        [number] = ANSWER.unpack(self._connection.recv(ANSWER.size, socket.MSG_WAITALL))
        return number


class ProcessServer:
    """A server from which processes are forked. Processes of a test run share a server if its arguments are
    equal.

    Each process that uses the server keeps the named pipe `users` open for writing, and the server reads this
    pipe. The server ends when no process has the pipe open any longer.

    Args:
        imports: modules that the server imports.
        constants: environment variables with the constants of the modules (`tests.constants`).
    """

    def __init__(self, imports: Sequence[str], constants: Mapping[str, str]) -> None:
        key = hashlib.sha256(repr((tuple(imports), sorted(constants.items()))).encode()).hexdigest()[:16]
        folder = run_folder() / key
        folder.mkdir(exist_ok=True)
        self.socket, users = folder / "socket", folder / "users"
        self.started: subprocess.Popen[bytes] | None = None  # the server, if this process has started it
        with exclusively(folder / LOCK):
            if not users.exists():
                os.mkfifo(users)
            try:
                self._users = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # no server reads the pipe
                reading = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
                self._users = os.open(users, os.O_WRONLY)
                self.started = self._start(reading, imports, constants)
                os.close(reading)

    def close(self) -> None:
        os.close(self._users)

    def _start(
        self, stdin: int, imports: Sequence[str], constants: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.process_server", str(self.socket), *imports]
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {**environment_of_the_run(), **constants}
        self.socket.unlink(missing_ok=True)
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"\n", "the process server did not start"
        return process


@cache
def _server(imports: tuple[str, ...], constants: tuple[tuple[str, str], ...]) -> ProcessServer:
    return ProcessServer(imports, dict(constants))
