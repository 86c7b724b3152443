"""A worker that is stopped while it waits for Temporal polls nothing."""

import asyncio
from typing import cast

from temporalio.worker import Worker

from batchwright.temporal import TemporalConnection
from batchwright.worker.pollers import ReconnectingWorker


class Server:
    """A Temporal server that answers a health check only when the test sets `answers`."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def check_health(self, **_: object) -> None:
        self.asked.set()
        await self.answers.wait()


class Client:
    def __init__(self, server: Server) -> None:
        self.service_client = server


class SdkWorker:
    """A fake worker of the SDK. `runs` counts how often it was run."""

    task_queue = "inference.alpha"

    def __init__(self, server: Server) -> None:
        self.client, self.runs = Client(server), 0

    async def run(self) -> None:
        self.runs += 1


class Connection:
    replacements = 0

    def __init__(self) -> None:
        self.on_replace = set[object]()


async def test_a_worker_that_is_stopped_during_its_health_check_does_not_poll() -> None:
    server = Server()
    sdk_worker = SdkWorker(server)
    worker = ReconnectingWorker(cast("Worker", sdk_worker), cast("TemporalConnection", Connection()))
    running = asyncio.create_task(worker.run())
    await server.asked.wait()
    await worker.shutdown()
    server.answers.set()
    await running
    assert sdk_worker.runs == 0
