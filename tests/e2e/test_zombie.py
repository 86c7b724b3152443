"""A worker that is frozen in mid-slice and wakes up when another one has its slices."""

import json
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from batchwright.contracts.names import model_run_id
from batchwright.rules.ids import safe_name
from starter.stack.ports import free_port
from tests.e2e.backend import Backend
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.fleet import workers
from tests.e2e.stack import MODELS, dev
from tests.e2e.test_survival import settled_requests
from tests.operations.parts import beside, process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = MODELS[0]
SLICES, IN_FLIGHT = 4, 10  # a worker has room for so many slices of a model, and asks so much at once
LINES = chat_lines((MODEL,), each=200)
# Turns that do not end: whoever has a slice keeps it, and the zombie finds none to take up.
LONG_TURNS = {"BATCHWRIGHT_SLICE_LINES": "50", "BATCHWRIGHT_SLICE_SECONDS": "600"}


@contextmanager
def one_more_backend() -> Generator[Backend]:
    url = f"http://127.0.0.1:{free_port()}"
    with process("simulator", "--port", url.rpartition(":")[2], well=f"{url}/healthz", environment={}):
        yield Backend(url)


async def held(server: Client, batch_id: str, attempt: int) -> bool:
    """Whether every slice is with a worker, for at least the `attempt`th time."""
    run = await server.get_workflow_handle(model_run_id(batch_id, safe_name(MODEL))).describe()
    pending = run.raw_description.pending_activities
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return len(pending) == SLICES and all(
        slice_.state == started and slice_.attempt >= attempt for slice_ in pending
    )


async def is_idle(backend: Backend) -> bool:
    return (await backend.ledger(entries=False)).in_flight == 0


async def test_a_zombie_asks_no_more_than_was_in_flight_and_stops_by_itself(tmp_path: Path) -> None:
    """Each worker has a backend of its own, whose ledger says what that worker asked."""
    with dev("--workers", "0", data=None, **LONG_TURNS) as stack:
        server = await stack.server()
        async with (
            beside(one_more_backend()) as others,
            workers(stack, tmp_path, **LONG_TURNS) as fleet,
            stack.client() as client,
        ):
            zombie = await fleet.start()
            zombies = Backend(stack.simulator)
            await zombies.faults(kind="hang", rate=0.3)  # these it never answers
            await others.faults(kind="slow", seconds=2.0, rate=1.0)
            batch = await submit(client, LINES)
            await settled(client, batch.id, 5)
            await until(lambda: held(server, batch.id, attempt=1))
            zombie.signal(signal.SIGSTOP)
            kept = settled_requests(stack.objects, batch.id)

            heir = await fleet.start(BATCHWRIGHT_BACKENDS=json.dumps([others.url]))
            await until(lambda: held(server, batch.id, attempt=2))
            before = await zombies.ledger(entries=False)
            assert 0 < before.in_flight <= IN_FLIGHT
            zombie.signal(signal.SIGCONT)
            await until(lambda: is_idle(zombies))
            await others.heal()
            done = await ended(client, batch.id)
            await check_conservation(client, done, LINES)
            asked_later = (await zombies.ledger(entries=False)).asked - before.asked
            asked_again = {entry.key for entry in (await others.ledger()).entries} & kept
            assert not zombie.is_gone, zombie.said
            await heir.kill()
            await zombies.heal()
            more = await submit(client, LINES)  # it is as good as any other worker again
            await check_conservation(client, await ended(client, more.id), LINES)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert asked_later <= IN_FLIGHT
    assert kept
    assert asked_again == set()
