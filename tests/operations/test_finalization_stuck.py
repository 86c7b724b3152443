"""Output files cannot be written to a directory: state and cause are shown, and nothing is lost."""

import re
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from batchwright.settings import load
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.temporal import connect
from tests.chaos.fleet import no_room_for
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, until
from tests.e2e.fleet import Worker, workers
from tests.e2e.stack import MODELS, Stack, dev
from tests.operations.guide import environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LINES = chat_lines(MODELS[:1], each=40)  # one slice
Broken = Callable[[Stack, Worker], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with dev("--workers", "0") as started:
        yield started


@contextmanager
def full(stack: Stack, writer: Worker) -> Generator[None]:
    """Context manager that makes the disk look full to the process that writes the files."""
    with no_room_for([writer.process.pid]):
        yield


@contextmanager
def not_mounted(stack: Stack, writer: Worker) -> Generator[None]:
    """Context manager that puts a file in place of the storage directory."""
    aside = stack.objects.with_name("aside")
    stack.objects.rename(aside)
    stack.objects.touch()
    try:
        yield
    finally:
        stack.objects.unlink()
        aside.rename(stack.objects)


class Metrics:
    def __init__(self) -> None:
        self.port = str(free_port())

    async def show(self, line: str) -> bool:
        async with http_client() as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}/metrics")
        return re.search(line, answer.text) is not None


@pytest.mark.parametrize(("broken", "message"), [(full, "cannot write"), (not_mounted, "/objects")])
async def test_files_that_cannot_be_written_are_written_after_the_directory_is_fixed(
    stack: Stack, tmp_path: Path, broken: Broken, message: str
) -> None:
    """The worker that writes files is suspended until all lines have results, and then finds a broken
    directory.
    """
    metrics = Metrics()
    async with workers(stack, tmp_path) as fleet, stack.client() as client, stack.backend.hold() as hold:
        writer = await fleet.start("control,io", BATCHWRIGHT_METRICS_PORT=metrics.port)
        await fleet.start("inference")
        batch = await hold.submit(client, LINES)

        async def cannot_write() -> bool:
            return await metrics.show(r'finalization_retries_total{result="error"} [1-9]')

        async def is_cause_named() -> bool:
            return message in await last_failures(stack, batch.id)

        writer.signal(signal.SIGSTOP)
        await hold.release()
        await settled(client, batch.id, len(LINES))
        with broken(stack, writer):
            writer.signal(signal.SIGCONT)
            await until(cannot_write)
            await until(is_cause_named)
            stuck = await client.batches.retrieve(batch.id)
            await until(lambda: metrics.show(r'oldest_job_age_seconds{status="finalizing"} \d'))
            output = run(broken is full, stack)
        done = await ended(client, batch.id)
        await check_conservation(client, done, LINES)
    assert stuck.status == "finalizing"
    assert (output.returncode, str(stack.objects) in output.stderr) == (1, True)
    assert (done.status, done.error_file_id) == ("completed", None)


async def last_failures(stack: Stack, batch_id: str) -> str:
    """Return the last failures of the batch's pending activities with their causes, as in the Web UI."""
    server = await connect(load(temporal_address=stack.now.temporal, temporal_namespace=stack.now.namespace))
    found = (await server.get_workflow_handle(batch_id).describe()).raw_description
    return "\n".join(str(step.last_failure) for step in found.pending_activities)


def run(in_little_room: bool, stack: Stack) -> "subprocess.CompletedProcess[str]":
    """Run the guide's command `batchwright storage check`.

    Args:
        in_little_room: True to forbid the command to write files, as on a full disk.
    """
    limit = "ulimit -f 0; " if in_little_room else ""
    command = ["bash", "-c", f"{limit}batchwright storage check"]
    return subprocess.run(command, env=environment(stack.now), capture_output=True, text=True, timeout=300)
