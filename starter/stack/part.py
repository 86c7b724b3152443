"""A part of the stack that runs as a process of ours."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starter.stack.errors import StackError

POLL_SECONDS = 0.05
_LAST_LINES = 15
_LOG_BYTES = 16 * 1024 * 1024


class Kept(Protocol):
    """What is started, watched, started again and stopped."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path: ...

    @property
    def pid(self) -> int | None:
        """Of its latest process."""
        ...

    async def start(self) -> None:
        """Return when it is healthy; StackError when it ends first or takes too long."""
        ...

    async def ended(self) -> str:
        """Return when its process is gone: how it ended."""
        ...

    async def stop(self, patience_seconds: float) -> None:
        """Ask it to end, and after the patience make it; nothing happens where it has ended."""
        ...


@dataclass(frozen=True)
class Part:
    name: str
    command: list[str]
    environment: Mapping[str, str]
    is_healthy: Callable[[], Awaitable[bool]]
    start_seconds: float = 180.0
    runs_in: Path | None = None  # None: where we run


class PartProcess:
    """Kept, with its output appended to a log. `spawned` is called with each new process."""

    def __init__(self, part: Part, log: Path, spawned: Callable[[], None]) -> None:
        self.name = part.name
        self.log = log
        self._part = part
        self._spawned = spawned
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # where in the log the latest process did

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        process = self._spawn()
        self._spawned()
        end = asyncio.get_running_loop().time() + self._part.start_seconds
        while process.poll() is None:
            if await self._part.is_healthy():
                return
            if asyncio.get_running_loop().time() > end:
                await self.stop(0)
                raise self._failure(f"was not ready within {self._part.start_seconds:g} s")
            await asyncio.sleep(POLL_SECONDS)
        raise self._failure(how_it_ended(process.returncode))

    async def ended(self) -> str:
        while True:
            code = self._process.poll() if self._process else 0
            if code is not None:
                return how_it_ended(code)
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, patience_seconds: float) -> None:
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
        """At once, with whatever the process started itself."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            _keep_short(self.log)
            with self.log.open("ab") as out:
                self._began = out.tell()
                # A session of its own: Ctrl-C reaches only `dev`, which stops its parts in order.
                self._process = subprocess.Popen(
                    self._part.command,
                    env=self._part.environment,
                    cwd=self._part.runs_in,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            raise StackError(f"{self.name} cannot be started: {error.filename}: {error.strerror}.") from error
        return self._process

    def _failure(self, how: str) -> StackError:
        return StackError(f"{self.name} {how} (log: {self.log}).", last_lines(self.log, self._began))


def how_it_ended(code: int) -> str:
    """`code` as subprocess has it: negative for a signal."""
    return f"ended with exit status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def last_lines(log: Path, since: int = 0) -> str:
    """What an earlier process wrote is before `since`, in bytes."""
    try:
        text = log.read_bytes()[since:][-16_384:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def _keep_short(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
