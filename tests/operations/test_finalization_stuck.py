"""Files that cannot be written to a directory: what one sees, what names the cause, and nothing is lost."""

import re
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.temporal import connect
from starter.stack.ports import free_port
from tests.chaos.fleet import no_room_for
from tests.clients import http_client
from tests.e2e.backend import Backend
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit, until
from tests.e2e.fleet import Worker, workers
from tests.e2e.stack import MODELS, Stack, dev
from tests.operations.guide import environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LINES = chat_lines(MODELS[:1], each=40)  # one slice
Broken = Callable[[Stack, Worker], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def house() -> Iterator[Stack]:
    with dev("--workers", "0") as stack:
        yield stack


@contextmanager
def full(house: Stack, writer: Worker) -> Generator[None]:
    """As it looks to the process that writes the files."""
    with no_room_for([writer.process.pid]):
        yield


@contextmanager
def not_mounted(house: Stack, writer: Worker) -> Generator[None]:
    """Something else lies where the directory was."""
    aside = house.objects.with_name("aside")
    house.objects.rename(aside)
    house.objects.touch()
    try:
        yield
    finally:
        house.objects.unlink()
        aside.rename(house.objects)


class Metrics:
    def __init__(self) -> None:
        self.port = str(free_port())

    async def show(self, line: str) -> bool:
        async with http_client() as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}/metrics")
        return re.search(line, answer.text) is not None


@pytest.mark.parametrize(("broken", "says"), [(full, "cannot write"), (not_mounted, "/objects")])
async def test_files_that_cannot_be_written_are_written_once_the_directory_is_mended(
    house: Stack, tmp_path: Path, broken: Broken, says: str
) -> None:
    """The worker that writes files sleeps until all lines have settled, and then finds a broken directory."""
    metrics = Metrics()
    async with workers(house, tmp_path) as fleet, house.client() as client:
        writer = await fleet.start("control,io", BATCHWRIGHT_METRICS_PORT=metrics.port)
        await fleet.start("inference")
        backend = Backend(house.simulator)
        await backend.faults(kind="slow", seconds=5.0, rate=1.0)
        batch = await submit(client, LINES)

        async def has_begun() -> bool:
            return (await backend.ledger(entries=False)).in_flight > 0

        async def cannot_write() -> bool:
            return await metrics.show(r'finalization_retries_total{result="error"} [1-9]')

        await until(has_begun)
        writer.signal(signal.SIGSTOP)
        await settled(client, batch.id, len(LINES))
        with broken(house, writer):
            writer.signal(signal.SIGCONT)
            await until(cannot_write)
            stuck = await client.batches.retrieve(batch.id)
            await until(lambda: metrics.show(r'oldest_job_age_seconds{status="finalizing"} \d'))
            why = await pending(house, batch.id)
            told = run(broken is full, house)
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    assert stuck.status == "finalizing"
    assert says in why
    assert (told.returncode, str(house.objects) in told.stderr) == (1, True)
    assert (done.status, done.error_file_id) == ("completed", None)


async def pending(house: Stack, batch_id: str) -> str:
    """What the Web UI shows of the last attempt of the batch's pending step, with its causes."""
    server = await connect(load(temporal_address=house.now.temporal, temporal_namespace=house.now.namespace))
    found = (await server.get_workflow_handle(batch_id).describe()).raw_description
    [step] = found.pending_activities
    return str(step.last_failure)


def run(in_little_room: bool, house: Stack) -> "subprocess.CompletedProcess[str]":
    """The command that the guide gives, on the same disk."""
    limit = "ulimit -f 0; " if in_little_room else ""
    command = ["bash", "-c", f"{limit}batchwright storage check"]
    return subprocess.run(command, env=environment(house.now), capture_output=True, text=True, timeout=300)
