"""Section: resources of a full-size batch: memory of API and worker, Temporal events, SQL statements."""

import asyncio
import re
import time
from pathlib import Path

import msgspec
import psutil
from temporalio.client import Client as Temporal

from batchwright.database.pool import open_connection_pool
from batchwright.starter.client import Client
from bench import batches
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.sections.ingestion import write_input
from bench.stack import RunningStack, forget_peak, peak_mib, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LINE_BYTES = 64, 4_190
_SECONDS, _VISIBLE_SECONDS = 55.0, 20.0
_STATEMENT = re.compile(rb"LOG:  (?:statement|execute)")


class _Used(msgspec.Struct, frozen=True):
    upload_api_mib: float
    api_mib: float
    worker_mib: float
    events: int
    statements: int


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(50_000, 2_000)
    folder = options.folder / "resources"
    folder.mkdir()
    write_input(folder, count, _LINE_BYTES)
    found: list[_Used] = []
    with simulator() as backend, running_stack(folder / "stack", backend.url, in_flight=_IN_FLIGHT) as stack:
        asyncio.run(_log_statements(stack))
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            used = _once(stack, folder / "input", count)
            options.report(f"round {number}: worker {used.worker_mib:.0f} MiB, API {used.api_mib:.0f} MiB")
            found.append(used)
    return _figures(found)


def _figures(found: list[_Used]) -> list[Figure]:
    return [
        Figure("resources.worker_mib", "worker's memory at its most", [one.worker_mib for one in found],
               "MiB", Target(256.0)),
        Figure("resources.api_mib", "API's memory at its most during the upload",
               [one.upload_api_mib for one in found], "MiB", Target(200.0)),
        Figure("resources.events", "Temporal history events", [one.events for one in found],
               target=Target(5_000.0)),
        Figure("resources.statements", "SQL statements, background included",
               [one.statements for one in found], target=Target(3_000.0)),
        Figure("resources.api_run_mib", "API's memory at its most, download included",
               [one.api_mib for one in found], "MiB"),
    ]  # fmt: skip


def _once(stack: RunningStack, path: Path, count: int) -> _Used:
    api, worker = psutil.Process(stack.pids.api[0]), psutil.Process(stack.pids.worker[0])
    for process in (api, worker):
        forget_peak(process)
    statements = _statements(stack)
    with Client(stack.api) as client:
        file_id = batches.upload(client, path)
        upload_mib = peak_mib(api)
        batch = batches.run_batch(client, file_id, count)
        statements = _statements(stack) - statements
        batches.download(client, batch, path.with_suffix(".output"), count)
    events = asyncio.run(_events(stack, batch.id))
    return _Used(upload_mib, peak_mib(api), peak_mib(worker), events, statements)


async def _log_statements(stack: RunningStack) -> None:
    """Make PostgreSQL log all statements, so that they can be counted."""
    connection = await open_connection_pool(stack.postgres, size=2, patience_seconds=10)
    await connection.execute("ALTER SYSTEM SET log_statement = 'all'")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


def _statements(stack: RunningStack) -> int:
    return len(_STATEMENT.findall((Path(stack.data) / "logs" / "postgres.log").read_bytes()))


async def _events(stack: RunningStack, batch_id: str) -> int:
    """Wait until all workflows of the batch have ended. Return the number of events in their histories.

    Raises:
        SystemExit: the workflows did not end in time.
    """
    client = await Temporal.connect(stack.temporal, namespace=stack.namespace)
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while time.monotonic() < deadline:
        runs = [run async for run in client.list_workflows(f"WorkflowId STARTS_WITH '{batch_id}'")]
        if len(runs) > 1 and all(run.close_time for run in runs):
            return sum([(await run_length(client, run.id, run.run_id)) for run in runs])
        await asyncio.sleep(0.2)
    raise SystemExit(f"the workflows of {batch_id} did not end")


async def run_length(client: Temporal, workflow_id: str, run_id: str) -> int:
    """Return the number of events in the history of one workflow run."""
    return (await client.get_workflow_handle(workflow_id, run_id=run_id).describe()).history_length


SECTION = Section(
    "resources",
    "What a batch takes",
    "50,000 lines of 4 KB (200 MB) through the whole stack, a simulator that answers at once, 64 in flight, "
    "one worker; memory is the most each process held. As many rounds as fit a minute.",
    1.5,
    measure,
)
