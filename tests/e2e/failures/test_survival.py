"""Batches of a user of the official client survive the death of each part of the stack."""

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from batchwright.rules import ids
from batchwright.rules.results.segment_format import RecordKind
from batchwright.rules.stored_objects import object_keys
from tests.e2e.batches import chat_lines, check_conservation, ended, lines_of, settled, submit, until
from tests.e2e.stack import MODELS, Part, Stack
from tests.segments import read_index

pytestmark = pytest.mark.e2e
IN_FLIGHT = 100  # of a worker, by default


def settled_requests(objects: Path, batch_id: str) -> set[str]:
    """Return the ids of all requests whose final result is stored.

    If a worker merges segments and deletes the old ones meanwhile, read them again.
    """
    results = objects / object_keys.results_root("default", batch_id)
    while True:
        with suppress(FileNotFoundError):
            return {
                ids.request_id(batch_id, entry.offset)
                for path in results.rglob("*")
                if path.is_file()
                for entry in read_index(path.read_bytes())
                if entry.kind is RecordKind.SETTLED
            }


async def test_a_killed_worker_loses_nothing_and_no_settled_line_is_sent_again(stack: Stack) -> None:
    async with stack.client() as client:
        lines = chat_lines(MODELS, each=300, user="of a killed worker")
        async with stack.backend.hold(MODELS[0]) as hold:
            batch = await hold.submit(client, lines)
            await settled(client, batch.id, 100)

            async def are_stored() -> bool:
                return bool(settled_requests(stack.objects, batch.id))

            await until(are_stored)
            killed = stack.kill("worker")
            settled_before = settled_requests(stack.objects, batch.id)

            async def replaced() -> bool:
                return len(stack.now.pids.worker) == 2 and not set(killed) & set(stack.now.pids.worker)

            await until(replaced)
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
        output = await lines_of(client, done.output_file_id)
    requests = await stack.requests_by_id(user="of a killed worker")
    assert done.status == "completed"
    assert len(output) == len(lines)
    assert set(requests) == {line.id for line in output}
    assert {request for request in settled_before if requests[request] != 1} == set()
    assert max(requests.values()) <= 2


@pytest.mark.parametrize("part", ["temporal", "postgres", "api", "simulator"])
async def test_a_killed_process_delays_the_batch_and_loses_no_line(stack: Stack, part: Part) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[0], kind="hold")  # the batch cannot end before the kill
        lines = chat_lines(MODELS, each=150)
        batch = await submit(client, lines)
        await settled(client, batch.id, 50)
        stack.kill(part)

        async def are_released() -> bool:
            with suppress(httpx.TransportError):  # until there is a simulator again
                await stack.heal()
                return True
            return False

        await until(are_released)
        async with asyncio.timeout(300):
            while True:
                try:
                    done = await ended(client, batch.id)
                    break
                except Exception:  # the API or what it needs is away for a moment
                    await asyncio.sleep(0.5)
        await check_conservation(client, done, lines)
    assert done.status == "completed"
    assert done.error_file_id is None
