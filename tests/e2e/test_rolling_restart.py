"""Workers that leave one after another in mid-batch, with 0, and no line is asked twice."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, Stack, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DRAIN_SECONDS = 30  # an answer takes two
PATIENT = {"BATCHWRIGHT_DRAIN_SECONDS": str(DRAIN_SECONDS)}


async def in_flight(stack: Stack) -> int:
    async with http_client() as http:
        answer = await http.get(stack.simulator + "/admin/ledger", params={"entries": "false"})
    return answer.raise_for_status().json()["in_flight"]


async def test_a_rolling_restart_of_three_workers_asks_no_line_twice(tmp_path: Path) -> None:
    with dev("--workers", "0") as stack:
        await stack.faults(kind="slow", seconds=2, rate=1.0)
        async with stack.client() as client, workers(stack, tmp_path, **PATIENT) as fleet:
            first = await asyncio.gather(*(fleet.start() for _ in range(3)))
            await asyncio.gather(*(fleet.start() for _ in range(3)))
            lines = chat_lines(MODELS, each=2000)
            batch = await submit(client, lines)
            await settled(client, batch.id, 30)
            codes: list[int] = []
            for worker in first:
                worker.signal(signal.SIGTERM)
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
        async with stack.client() as client, workers(stack, tmp_path, **PATIENT) as fleet:
            worker = await fleet.start()
            lines = chat_lines(MODELS, each=5)
            batch = await submit(client, lines)

            async def busy() -> bool:
                return await in_flight(stack) > 0

            await until(busy)
            worker.signal(signal.SIGTERM)

            async def draining() -> bool:
                return "draining" in worker.said

            await until(draining)
            worker.signal(signal.SIGTERM)
            code = await worker.process.wait()
            await stack.heal()
            await fleet.start()
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
    assert code == 130
    assert done.status == "completed"
