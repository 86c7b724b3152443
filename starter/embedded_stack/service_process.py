"""One service of the embedded stack: a child process with a health check and a log."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from batchwright.starter.embedded_stack.directory import UMASK, open_private
from batchwright.starter.embedded_stack.errors import StackError

POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 15
_LOG_BYTES = 16 * 1024 * 1024
_START_SECONDS = 180.0


class ManagedService(Protocol):
    """A service that the supervisor starts, watches and restarts."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path: ...

    @property
    def pid(self) -> int | None:
        """The id of the process that was last started; None before the first start."""
        ...

    async def start(self) -> None:
        """Start the service. Return when its health check succeeds.

        Raises:
            StackError: the process ended during the start, or the health check did not succeed in time.
        """
        ...

    async def ended(self) -> str:
        """Wait until the process has ended. Return how it ended, such as "ended with exit status 1"."""
        ...


@dataclass(frozen=True)
class ServiceSpec:
    name: str
    command: list[str]
    environment: Mapping[str, str]
    is_healthy: Callable[[], Awaitable[bool]]
    working_directory: Path | None = None  # None keeps the directory of this process


class ServiceProcess:
    """A service that runs as a child process.

    Args:
        log: file to which the service's output is appended.
        on_spawn: function that is called after each start of the process.
    """

    def __init__(self, spec: ServiceSpec, log: Path, on_spawn: Callable[[], None]) -> None:
        self.name = spec.name
        self.log = log
        self._spec = spec
        self._on_spawn = on_spawn
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0  # position in the log at which the latest process began

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        process = self._spawn()
        self._on_spawn()
        end = asyncio.get_running_loop().time() + _START_SECONDS
        while process.poll() is None:
            if await self._spec.is_healthy():
                return
            if asyncio.get_running_loop().time() > end:
                await self.stop(0)
                raise self._failure(f"was not ready within {_START_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)
        raise self._failure(exit_description(process.returncode))

    async def ended(self) -> str:
        while True:
            code = self._process.poll() if self._process else 0
            if code is not None:
                return exit_description(code)
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, patience_seconds: float) -> None:
        """Stop the process, and wait until it has ended. If it has already ended, do nothing.

        Args:
            patience_seconds: seconds after which a process that is still running is killed.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        end = asyncio.get_running_loop().time() + patience_seconds
        while process.poll() is None:
            if asyncio.get_running_loop().time() > end:
                self.kill()
            await asyncio.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
            with open(self.log, "ab", opener=open_private) as out:
                self._log_offset = out.tell()
                # A session of its own, so that Ctrl-C reaches only `dev`, which stops its services in order.
                self._process = subprocess.Popen(
                    self._spec.command,
                    env=self._spec.environment,
                    cwd=self._spec.working_directory,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    umask=UMASK,
                )
        except OSError as error:
            raise StackError(f"{self.name} cannot be started: {error.filename}: {error.strerror}.") from error
        return self._process

    def _failure(self, how: str) -> StackError:
        return StackError(f"{self.name} {how} (log: {self.log}).", log_tail(self.log, self._log_offset))


def exit_description(code: int) -> str:
    """Return a description of how a child process ended, such as "ended with exit status 1".

    Args:
        code: exit code. A negative code means that the signal with this number ended the process.
    """
    return f"ended with exit status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def log_tail(log: Path, since: int = 0) -> str:
    """Return the last 15 lines of a log file; empty if the file cannot be read.

    Args:
        since: byte position in the file at which the output of the current process begins.
    """
    try:
        text = log.read_bytes()[since:][-16_384:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
