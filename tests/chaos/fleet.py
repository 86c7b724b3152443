"""Worker processes of our own, behind proxies, started again whenever one ends."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.chaos.proxy import LOOPBACK, Proxy
from tests.e2e.stack import SETTINGS, Addresses

_WORKER_SETTINGS = {
    "BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS": "20",
    "BATCHWRIGHT_CONNECT_TIMEOUT_SECONDS": "3",
    "BATCHWRIGHT_METRICS_PORT": "0",
    "BATCHWRIGHT_LOG_LEVEL": "INFO",
}


class Proxies:
    """What stands between the workers and the rest."""

    def __init__(self, addresses: Addresses) -> None:
        assert addresses.simulator is not None
        self.backend = Proxy(httpx.URL(addresses.simulator).port or 80)
        self.temporal = Proxy(int(addresses.temporal.rpartition(":")[2]))
        self.postgres = Proxy(_port_of(addresses.postgres))

    @property
    def all(self) -> tuple[Proxy, ...]:
        return self.backend, self.temporal, self.postgres

    def environment(self, addresses: Addresses) -> dict[str, str]:
        port = _port_of(addresses.postgres)
        return {
            "BATCHWRIGHT_DATABASE_URL": addresses.postgres.replace(f":{port}/", f":{self.postgres.port}/"),
            "BATCHWRIGHT_TEMPORAL_ADDRESS": f"{LOOPBACK}:{self.temporal.port}",
            "BATCHWRIGHT_TEMPORAL_NAMESPACE": addresses.namespace,
            "BATCHWRIGHT_BACKENDS": json.dumps([f"http://{LOOPBACK}:{self.backend.port}"]),
            "BATCHWRIGHT_STORAGE_DIR": str(addresses.data / "objects"),
        }


class Workers:
    def __init__(self, count: int, environment: dict[str, str], logs: Path) -> None:
        self._count, self._logs = count, logs
        self._environment = {**os.environ, **SETTINGS, **_WORKER_SETTINGS, **environment}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._starts = 0
        self.exits: list[int] = []  # codes of those that ended by themselves or were told to stop
        self._killed: set[int] = set()

    @property
    def pids(self) -> list[int]:
        return [process.pid for _, process in sorted(self._processes.items())]

    def start(self) -> None:
        self._keepers = [asyncio.create_task(self._keep(place)) for place in range(self._count)]

    def signal(self, pid: int, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self._killed.add(pid)
        os.kill(pid, number)

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, place: int) -> None:
        while True:
            process = await self._spawn()
            self._processes[place] = process
            try:
                code = await process.wait()
                if process.pid not in self._killed:
                    self.exits.append(code)
            finally:
                del self._processes[place]
                if process.returncode is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                    await process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._starts += 1
        with (self._logs / f"chaos-worker-{self._starts:03d}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "worker", env=self._environment, stdout=log, stderr=log
            )


@asynccontextmanager
async def workers_behind_proxies(count: int, addresses: Addresses) -> AsyncGenerator[tuple[Workers, Proxies]]:
    proxies = Proxies(addresses)
    for proxy in proxies.all:
        await proxy.start()
    workers = Workers(count, proxies.environment(addresses), addresses.data / "logs")
    workers.start()
    try:
        yield workers, proxies
    finally:
        await workers.stop()
        for proxy in proxies.all:
            await proxy.stop()


def _port_of(url: str) -> int:
    return httpx.URL(url).port or 5432
