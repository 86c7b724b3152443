"""Workers are restarted one by one while a batch runs. Each exits with 0, and no line is sent twice."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DRAIN_SECONDS = 120  # an answer takes two
PATIENT = {"BATCHWRIGHT_DRAIN_SECONDS": str(DRAIN_SECONDS)}


async def test_a_rolling_restart_of_three_workers_sends_no_line_twice(tmp_path: Path) -> None:
    """The lines of one model cannot be answered before the restarts are over, so the batch does not end."""
    # A worker on a busy machine must not count as lost: its slices would be sent again elsewhere.
    with dev("--workers", "0", BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS="120") as stack:
        await stack.faults(model=MODELS[0], kind="503")
        await stack.faults(kind="slow", seconds=2.0)
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
        entries = (await stack.backend.ledger()).entries
    assert codes == [0, 0, 0]
    assert still == "in_progress", "the batch ended before the restart did: it proved nothing"
    assert done.status == "completed"
    assert len(entries) == len(lines)
    assert [entry for entry in entries if entry.model != MODELS[0] and entry.requests > 1] == []


async def test_a_second_signal_ends_a_draining_worker_and_the_batch_continues_on_another(
    tmp_path: Path,
) -> None:
    with dev("--workers", "0") as stack:
        async with stack.client() as client, workers(stack, tmp_path, **PATIENT) as fleet:
            worker = await fleet.start()
            lines = chat_lines(MODELS, each=5)
            async with stack.backend.hold() as hold:
                batch = await hold.submit(client, lines)
                worker.signal(signal.SIGTERM)

                async def is_draining() -> bool:
                    return "draining" in worker.output

                await until(is_draining)
                worker.signal(signal.SIGTERM)
                code = await worker.process.wait()
            await fleet.start()
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
    assert code == 130
    assert done.status == "completed"
