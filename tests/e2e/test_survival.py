"""What a user of the official client sees when parts of the stack die."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from batchwright.rules import ids, keys
from batchwright.rules.segments import Kind, read_index
from tests.e2e.batches import chat_lines, check_conservation, ended, lines_of, settled, submit, until
from tests.e2e.stack import MODELS, Part, Stack, dev

pytestmark = pytest.mark.e2e
IN_FLIGHT = 100  # of a worker, by default
UNFLUSHED = 256  # results a slice may hold back
SLICES_AT_ONCE = 4 * len(MODELS)


def settled_requests(objects: Path, batch_id: str) -> set[str]:
    """The request ids whose final line lies in a stored segment."""
    results = objects / keys.results_root("default", batch_id)
    return {
        ids.request_id(batch_id, entry.offset)
        for path in results.rglob("*")
        if path.is_file()
        for entry in read_index(path.read_bytes())
        if entry.kind is Kind.SETTLED
    }


async def check_killed_worker(stack: Stack) -> str:
    """Of a stack with two: what their kill costs a batch, whose id this is, is time."""
    async with stack.client() as client:
        for model in MODELS:
            await stack.faults(model=model, kind="slow", seconds=0.4, rate=1.0)
        lines = chat_lines(MODELS, each=300, user="of a killed worker")
        batch = await submit(client, lines)
        await settled(client, batch.id, 100)
        killed = stack.kill("worker")
        kept = settled_requests(stack.objects, batch.id)
        assert kept

        async def replaced() -> bool:
            return len(stack.now.pids.worker) == 2 and not set(killed) & set(stack.now.pids.worker)

        await until(replaced)
        done = await ended(client, batch.id)
        await check_conservation(client, done, lines)
        output = await lines_of(client, done.output_file_id)
    asked = await stack.asked(user="of a killed worker")
    assert done.status == "completed"
    assert len(output) == len(lines)
    assert set(asked) == {line.id for line in output}
    assert {request for request in kept if asked[request] != 1} == set()
    assert max(asked.values()) <= 2
    return batch.id


async def test_a_killed_worker_loses_nothing_and_asks_no_settled_line_again(stack: Stack) -> None:
    await check_killed_worker(stack)


@pytest.mark.slow
async def test_nor_does_one_that_has_slices_of_a_batch_without_model_runs() -> None:
    with dev("--workers", "2", BATCHWRIGHT_INLINE_SLICES="16") as stack:
        batch_id = await check_killed_worker(stack)
        run = (await stack.server()).get_workflow_handle(batch_id)
        kinds = Counter([event.event_type async for event in run.fetch_history_events()])
    assert kinds[EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED] == 0
    assert kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED] > len(MODELS)


@pytest.mark.parametrize("part", ["temporal", "postgres", "api", "simulator"])
async def test_a_killed_part_costs_time_and_no_line(stack: Stack, part: Part) -> None:
    async with stack.client() as client:
        await stack.faults(model=MODELS[0], kind="slow", seconds=0.4, rate=1.0)
        lines = chat_lines(MODELS, each=150)
        batch = await submit(client, lines)
        await settled(client, batch.id, 50)
        stack.kill(part)
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
