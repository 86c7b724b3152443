"""Worker processes that a test starts with its own roles and settings, for a stack without workers."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.e2e.batches import until
from tests.e2e.stack import SETTINGS, Stack

ALL_ROLES = "control,io,inference"


class Worker:
    """A worker process that a test started. Its output is in a log file, which `output` returns."""

    def __init__(self, process: Process, log: Path, roles: str) -> None:
        self.process, self._log, self._roles = process, log, roles

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def is_gone(self) -> bool:
        return self.process.returncode is not None

    async def ready(self) -> None:
        """Wait until the worker is up. If it runs slices, also wait until it polls a task queue."""
        queues = ["started polling a task queue"] if "inference" in self._roles else []

        async def polls() -> bool:
            assert not self.is_gone, self.output
            return all(word in self.output for word in ("the worker is up", *queues))

        await until(polls)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Kill the process, even if it is suspended, and wait for its end.

        If it has already ended, do nothing.
        """
        if not self.is_gone:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Fleet:
    """Worker processes of one test.

    Args:
        logs: Directory for their log files.
        settings: Environment variables of all workers. `start` can add more for one worker.
    """

    def __init__(self, stack: Stack, logs: Path, settings: dict[str, str]) -> None:
        now = stack.now
        self._logs = logs
        self.all: list[Worker] = []
        self._environment = {
            **os.environ,
            **SETTINGS,
            "BATCHWRIGHT_DATABASE_URL": now.postgres,
            "BATCHWRIGHT_TEMPORAL_ADDRESS": now.temporal,
            "BATCHWRIGHT_TEMPORAL_NAMESPACE": now.namespace,
            "BATCHWRIGHT_BACKENDS": json.dumps([stack.simulator]),
            "BATCHWRIGHT_STORAGE_DIR": str(stack.objects),
            "BATCHWRIGHT_METRICS_PORT": "0",
            **settings,
        }

    async def start(self, roles: str = ALL_ROLES, **settings: str) -> Worker:
        """Start a worker with these roles, wait until it is ready, and return it."""
        log = self._logs / f"worker-{len(self.all)}.log"
        command = (sys.executable, "-P", "-m", "batchwright.worker", "--roles", roles)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *command, env={**self._environment, **settings}, stdout=out, stderr=out
            )
        worker = Worker(process, log, roles)
        self.all.append(worker)
        await worker.ready()
        return worker

    async def kill(self) -> None:
        """Kill all workers of the fleet."""
        await asyncio.gather(*(worker.kill() for worker in self.all))


@asynccontextmanager
async def workers(stack: Stack, logs: Path, **settings: str) -> AsyncGenerator[Fleet]:
    """Yield a fleet, which has no workers at first. All workers that the test adds are killed at the end."""
    fleet = Fleet(stack, logs, settings)
    try:
        yield fleet
    finally:
        await fleet.kill()
