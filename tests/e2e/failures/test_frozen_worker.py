"""A worker is suspended while it runs slices. It wakes up when another worker has taken these slices."""

import json
import signal
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from batchwright.contracts.temporal_names import model_run_id
from batchwright.rules.ids import safe_name
from batchwright.starter.embedded_stack.ports import free_port
from tests.constants import with_constants
from tests.e2e.backend import Backend
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.failures.test_survival import settled_requests
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, dev
from tests.operations.parts import beside, process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = MODELS[0]
IN_FLIGHT = 10  # requests of the first worker at once
ANSWERED = 20  # requests of the first worker before it is suspended
LINES = chat_lines((MODEL,), each=200)
SMALL_SLICES = with_constants(max_slice_lines=50)
# The second worker takes all slices, and the first one finds none when it wakes up.
ROOM_FOR_ALL = {"BATCHWRIGHT_MODEL_IN_FLIGHT": "200", "BATCHWRIGHT_GLOBAL_IN_FLIGHT": "201"}


@contextmanager
def one_more_backend() -> Generator[Backend]:
    url = f"http://127.0.0.1:{free_port()}"
    with process("simulator", "--port", url.rpartition(":")[2], well=f"{url}/healthz", environment={}):
        yield Backend(url)


async def running_slices(server: Client, batch_id: str, attempt: int) -> set[str]:
    """Return the activity ids of the slices that a worker is running now in attempt `attempt` or a later one.

    If `attempt` is above 1, return an empty set as long as any slice waits for a worker.
    """
    run = await server.get_workflow_handle(model_run_id(batch_id, safe_name(MODEL))).describe()
    pending = run.raw_description.pending_activities
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    if attempt > 1 and any(slice_.state != started for slice_ in pending):
        return set()
    return {slice_.activity_id for slice_ in pending if slice_.state == started and slice_.attempt >= attempt}


async def is_idle(backend: Backend) -> bool:
    return (await backend.ledger(entries=False)).in_flight == 0


async def test_a_frozen_worker_that_wakes_up_sends_nothing_new_and_stops_by_itself(tmp_path: Path) -> None:
    """Each worker has a backend of its own, whose ledger shows the requests of this worker."""
    with dev("--workers", "0", data=None, **SMALL_SLICES) as stack:
        server = await stack.server()
        async with (
            beside(one_more_backend()) as others,
            workers(stack, tmp_path, **SMALL_SLICES) as fleet,
            stack.client() as client,
            AsyncExitStack() as holds,
        ):
            zombie = await fleet.start(BATCHWRIGHT_ADAPTIVE_LIMITS="false")
            zombies = Backend(stack.simulator)
            await zombies.faults(kind="slow", seconds=0.1, count=ANSWERED)
            await zombies.faults(kind="hang")  # all others, which it never answers
            held = await holds.enter_async_context(others.hold())
            batch = await submit(client, LINES)
            await settled(client, batch.id, ANSWERED)

            async def is_stuck() -> bool:
                hang = (await zombies.ledger(entries=False)).in_flight == IN_FLIGHT
                return hang and bool(settled_requests(stack.objects, batch.id))

            await until(is_stuck)
            zombie.signal(signal.SIGSTOP)
            taken = await running_slices(server, batch.id, attempt=1)
            settled_before = settled_requests(stack.objects, batch.id)

            heir = await fleet.start(BATCHWRIGHT_BACKENDS=json.dumps([others.url]), **ROOM_FOR_ALL)

            async def are_taken_over() -> bool:
                return taken <= await running_slices(server, batch.id, attempt=2)

            await until(are_taken_over)
            before = await zombies.ledger(entries=False)
            assert 0 < before.in_flight <= IN_FLIGHT
            zombie.signal(signal.SIGCONT)
            await until(lambda: is_idle(zombies))
            await held.release()
            done = await ended(client, batch.id)
            await check_conservation(client, done, LINES)
            sent_later = (await zombies.ledger(entries=False)).requests - before.requests
            sent_again = {entry.key for entry in (await others.ledger()).entries} & settled_before
            assert not zombie.is_gone, zombie.output
            await heir.kill()
            await zombies.heal()
            more = await submit(client, LINES)  # it is as good as any other worker again
            await check_conservation(client, await ended(client, more.id), LINES)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert sent_later <= IN_FLIGHT
    assert settled_before
    assert sent_again == set()
    assert taken
