"""The fleet-wide limit of a backend, while workers start and stop."""

import re
from pathlib import Path

import httpx
import pytest

from tests.clients import http_client
from tests.constants import with_constants
from tests.e2e.backend import Backend
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.fleet import Worker, workers
from tests.e2e.jobs import register
from tests.e2e.stack import MODELS, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL, LIMIT = "limited", 6
LINES = chat_lines([MODEL], each=10_000)  # more than eight minutes, until the faults are cleared
# A worker on a busy machine must not count as gone while it still sends: its share would be given to another.
MANY = {**with_constants(max_slice_lines=50, fleet_fresh_age=30), "BATCHWRIGHT_MODEL_IN_FLIGHT": "32"}


async def most_in_flight(http: httpx.AsyncClient, backend: Backend) -> int:
    """Return the maximum number of requests in flight at the backend since its ledger was cleared."""
    report = await http.get(f"{backend.url}/admin/ledger", params={"entries": "false"})
    return int(report.raise_for_status().json()["max_in_flight"])


async def part_of(http: httpx.AsyncClient, worker: Worker) -> int:
    """Return how many requests this worker may have in flight at the backend; 0 if it has sent none yet."""
    found = re.search(r"127\.0\.0\.1:\d+", worker.output)
    assert found is not None
    metrics = (await http.get(f"http://{found[0]}/metrics")).text
    part = re.search(r"^batchwright_backend_max_inflight_concurrency\{.*\} (\S+)$", metrics, re.MULTILINE)
    return int(float(part[1])) if part else 0


async def test_workers_that_join_and_leave_divide_the_limit_of_a_backend(tmp_path: Path) -> None:
    with dev("--workers", "0", data=None, **MANY) as stack:
        backend = Backend(stack.simulator)
        await backend.faults(kind="slow", seconds=0.3, rate=1.0)
        limited = {"url": stack.simulator, "model": MODELS[0], "in_flight": LIMIT}
        await register(stack, MODEL, {"backends": [limited], "limits": {"in_flight": 32}})
        async with http_client() as http, workers(stack, tmp_path, **MANY) as fleet, stack.client() as client:

            async def are_parts(*parts: int) -> bool:
                live = [worker for worker in fleet.all if not worker.is_gone]
                return [await part_of(http, worker) for worker in live] == list(parts)

            async def send_more(batch_id: str) -> None:
                """Wait until many more lines have been settled."""
                counts = (await client.batches.retrieve(batch_id)).request_counts
                assert counts is not None
                await settled(client, batch_id, counts.completed + 100)

            async def is_full() -> bool:
                return await most_in_flight(http, backend) >= LIMIT

            async def check_limit(batch_id: str) -> None:
                """Check that the requests in flight reach the limit of the backend, and do not exceed it."""
                await send_more(batch_id)  # until the requests from before a change of the shares have ended
                await backend.forget()
                await until(is_full)
                await send_more(batch_id)
                assert await most_in_flight(http, backend) == LIMIT

            first = await fleet.start()
            batch = await submit(client, LINES)
            await until(lambda: are_parts(LIMIT))
            await check_limit(batch.id)
            await fleet.start()
            await until(lambda: are_parts(LIMIT // 2, LIMIT // 2))
            await check_limit(batch.id)
            await first.kill()
            await until(lambda: are_parts(LIMIT))
            await check_limit(batch.id)
            await backend.heal()
            done = await ended(client, batch.id)
            await check_conservation(client, done, LINES)
    assert done.status == "completed"
