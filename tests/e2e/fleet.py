"""Worker processes of a test's own beside a stack that has none: of any role, with settings of their own."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from batchwright.rules.ids import safe_name
from tests.e2e.batches import until
from tests.e2e.stack import MODELS, SETTINGS, Stack

ALL_ROLES = "control,io,inference"


class Worker:
    """A worker process of ours; its output is kept until it is asked for."""

    def __init__(self, process: Process, log: Path, roles: str) -> None:
        self.process, self._log, self._roles = process, log, roles

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def is_gone(self) -> bool:
        return self.process.returncode is not None

    async def ready(self) -> None:
        """Once it is up, and polls every model's queue where that is its role."""
        queues = [f"inference.{safe_name(name)}" for name in MODELS] if "inference" in self._roles else []

        async def polls() -> bool:
            assert not self.is_gone, self.said
            return all(word in self.said for word in ("the worker is up", *queues))

        await until(polls)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """Also one that is frozen or gone."""
        if not self.is_gone:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Fleet:
    """`settings` are those of the stack's other processes; each worker may have more."""

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
        """A worker that is ready."""
        log = self._logs / f"worker-{len(self.all)}.log"
        command = (sys.executable, "-P", "-m", "worker", "--roles", roles)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *command, env={**self._environment, **settings}, stdout=out, stderr=out
            )
        worker = Worker(process, log, roles)
        self.all.append(worker)
        await worker.ready()
        return worker

    async def kill(self) -> None:
        """All of them."""
        await asyncio.gather(*(worker.kill() for worker in self.all))


@asynccontextmanager
async def workers(stack: Stack, logs: Path, **settings: str) -> AsyncGenerator[Fleet]:
    """A fleet without workers yet; they are gone at the end."""
    fleet = Fleet(stack, logs, settings)
    try:
        yield fleet
    finally:
        await fleet.kill()
