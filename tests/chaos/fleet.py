"""Worker processes whose connections go through proxies. Each worker that ends is started again."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from tests.chaos.events import NETWORKS
from tests.chaos.objects import STORAGE_PATIENCE_SECONDS
from tests.chaos.wires import Wires
from tests.constants import with_constants
from tests.e2e.stack import SETTINGS, Addresses

HEARTBEAT_TIMEOUT_SECONDS = 10  # less than a worker is frozen
_WORKER_SETTINGS = {
    # Workers create the batches of schedules.
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": f"{HEARTBEAT_TIMEOUT_SECONDS}",
    "BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS": "20",
    "BATCHWRIGHT_CONNECT_TIMEOUT_SECONDS": "3",
    "BATCHWRIGHT_METRICS_PORT": "0",
    **NETWORKS,
    "BATCHWRIGHT_LOG_LEVEL": "INFO",
    # Several parts may be unavailable one after the other.
    **with_constants(startup_seconds=120, storage_patience_seconds=STORAGE_PATIENCE_SECONDS),
}
_TOLD_LINES = 30


class Workers:
    def __init__(self, count: int, environment: dict[str, str], logs: Path) -> None:
        self._count, self._logs = count, logs
        self.environment = {**os.environ, **SETTINGS, **_WORKER_SETTINGS, **environment}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._starts = 0
        self.failures: list[str] = []  # of those that ended by themselves, or failed after a stop signal
        self._stopped: set[int] = set()  # by SIGTERM; a second one ends a process at once
        self._silent: set[int] = set()  # killed, stopped twice, or stopped before Python handled signals

    @property
    def pids(self) -> list[int]:
        return [process.pid for _, process in sorted(self._processes.items())]

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(place)) for place in range(self._count)]

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a worker. Do nothing if it has just ended."""
        with suppress(FileNotFoundError, ProcessLookupError):
            if number is signal.SIGTERM:
                if pid in self._stopped or not _handles(pid, number):
                    self._silent.add(pid)
                self._stopped.add(pid)
            elif number is signal.SIGKILL:
                self._silent.add(pid)
            os.kill(pid, number)

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, place: int) -> None:
        while True:
            process, log = await self._spawn()
            self._processes[place] = process
            try:
                code = await process.wait()
                if code and process.pid not in self._silent:
                    self.failures.append(f"exit code {code}:\n{_end_of(log)}")
            finally:
                del self._processes[place]
                if process.returncode is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                    await process.wait()

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, Path]:
        self._starts += 1
        path = self._logs / f"chaos-worker-{self._starts:03d}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "batchwright.worker",
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        return process, path


def _handles(pid: int, number: signal.Signals) -> bool:
    """Return True if the process has a handler for this signal.

    Raises:
        FileNotFoundError: the process has ended.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [caught] = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TOLD_LINES:])


@asynccontextmanager
async def workers_behind(wires: Wires, count: int, addresses: Addresses) -> AsyncGenerator[Workers]:
    async with wires.laid():
        workers = Workers(count, wires.environment(addresses), addresses.data / "logs")
        workers.start()
        try:
            yield workers
        finally:
            await workers.stop()


@contextmanager
def no_room_for(pids: Sequence[int]) -> Generator[None]:
    """Context manager in which no file of these processes can grow, as on a full disk."""
    try:
        _limit_files(pids, 0)
        yield
    finally:
        _limit_files(pids, resource.RLIM_INFINITY)


def _limit_files(pids: Sequence[int], size: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))
