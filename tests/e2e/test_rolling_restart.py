"""Workers that leave one after another in mid-batch, with 0, and no line is asked twice."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from batchwright.rules.ids import safe_name
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.stack import MODELS, SETTINGS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

DRAIN_SECONDS = 30  # an answer takes two


class Worker:
    """A worker process of ours; its output is kept until it is asked for."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process, self._log = process, log

    @property
    def said(self) -> str:
        return self._log.read_text()

    async def ready(self) -> None:
        async def polls() -> bool:
            assert self.process.returncode is None, self.said
            return all(f"inference.{safe_name(name)}" in self.said for name in MODELS)

        await until(polls)


@asynccontextmanager
async def workers(stack: Stack, logs: Path) -> AsyncGenerator["Fleet"]:
    fleet = Fleet(stack, logs)
    try:
        yield fleet
    finally:
        for worker in fleet.all:
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()


class Fleet:
    def __init__(self, stack: Stack, logs: Path) -> None:
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
            "BATCHWRIGHT_DRAIN_SECONDS": str(DRAIN_SECONDS),
        }

    async def start(self) -> Worker:
        """A worker that polls the queues of all models."""
        log = self._logs / f"worker-{len(self.all)}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "worker", env=self._environment, stdout=out, stderr=out
            )
        worker = Worker(process, log)
        self.all.append(worker)
        await worker.ready()
        return worker


async def in_flight(stack: Stack) -> int:
    async with httpx.AsyncClient() as http:
        answer = await http.get(stack.simulator + "/admin/ledger", params={"entries": "false"})
    return answer.raise_for_status().json()["in_flight"]


async def test_a_rolling_restart_of_three_workers_asks_no_line_twice(tmp_path: Path) -> None:
    with dev("--workers", "0") as stack:
        await stack.faults(kind="slow", seconds=2, rate=1.0)
        async with stack.client() as client, workers(stack, tmp_path) as fleet:
            first = await asyncio.gather(*(fleet.start() for _ in range(3)))
            await asyncio.gather(*(fleet.start() for _ in range(3)))
            lines = chat_lines(MODELS, each=2000)
            batch = await submit(client, lines)
            await settled(client, batch.id, 30)
            codes: list[int] = []
            for worker in first:
                worker.process.send_signal(signal.SIGTERM)
                codes.append(await asyncio.wait_for(worker.process.wait(), 2 * DRAIN_SECONDS))
            still = (await client.batches.retrieve(batch.id)).status
            await stack.heal()
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
        counts = await stack.asked()
    assert codes == [0, 0, 0]
    assert still == "in_progress", "the batch ended before the restart did: it proved nothing"
    assert done.status == "completed"
    assert len(counts) == len(lines)
    assert {key: count for key, count in counts.items() if count > 1} == {}


async def test_a_second_signal_ends_a_worker_that_drains_and_the_batch_goes_on_elsewhere(
    tmp_path: Path,
) -> None:
    with dev("--workers", "0") as stack:
        await stack.faults(kind="slow", seconds=15, rate=1.0)
        async with stack.client() as client, workers(stack, tmp_path) as fleet:
            worker = await fleet.start()
            lines = chat_lines(MODELS, each=5)
            batch = await submit(client, lines)

            async def busy() -> bool:
                return await in_flight(stack) > 0

            await until(busy)
            worker.process.send_signal(signal.SIGTERM)

            async def draining() -> bool:
                return "draining" in worker.said

            await until(draining)
            worker.process.send_signal(signal.SIGTERM)
            code = await worker.process.wait()
            await stack.heal()
            await fleet.start()
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
    assert code == 130
    assert done.status == "completed"
