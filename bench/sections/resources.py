"""Section of the benchmark: resources that a full-size batch needs.

They are the memory of the API and the worker, the events in Temporal, the SQL statements, and the storage
requests.
"""

import asyncio
import time
from pathlib import Path

import msgspec
import psutil

from batchwright.starter.client import Client
from bench import batches
from bench.counted import events, log_statements, statements, storage_requests
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.sections.ingestion import write_input
from bench.stack import RunningStack, forget_peak, peak_mib, running_stack, simulator, wait_until_quiet

_IN_FLIGHT, _LINE_BYTES = 64, 4_190
_SECONDS, _IDLE_SECONDS, _MORE_WORKERS = 45.0, 10.0, 2


class _Used(msgspec.Struct, frozen=True):
    upload_api_mib: float
    api_mib: float
    worker_mib: float
    events: int
    statements: int
    storage_requests: int


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(50_000, 2_000)
    folder = options.folder / "resources"
    folder.mkdir()
    write_input(folder, count, _LINE_BYTES)
    found: list[_Used] = []
    with simulator() as backend, running_stack(folder / "stack", backend.url, in_flight=_IN_FLIGHT) as stack:
        asyncio.run(log_statements(stack))
        for number in options.turns(_SECONDS):
            wait_until_quiet(stack)
            used = _once(stack, folder / "input", count)
            options.report(f"round {number}: worker {used.worker_mib:.0f} MiB, API {used.api_mib:.0f} MiB")
            found.append(used)
        idle = _idle_statements(stack)
    with running_stack(
        folder / "more", "http://127.0.0.1:9", in_flight=_IN_FLIGHT, workers=1 + _MORE_WORKERS
    ) as stack:
        asyncio.run(log_statements(stack))
        more_idle = _idle_statements(stack)
    return _figures(found, [idle], [more_idle])


def _idle_statements(stack: RunningStack) -> float:
    """Return the SQL statements per second of a stack that has nothing to do."""
    wait_until_quiet(stack)
    before = statements(stack)
    time.sleep(_IDLE_SECONDS)
    return (statements(stack) - before) / _IDLE_SECONDS


def _figures(found: list[_Used], idle: list[float], more_idle: list[float]) -> list[Figure]:
    return [
        Figure("resources.worker_mib", "worker's memory at its most", [one.worker_mib for one in found],
               "MiB", Target(256.0)),
        Figure("resources.api_mib", "API's memory at its most during the upload",
               [one.upload_api_mib for one in found], "MiB", Target(200.0)),
        Figure("resources.events", "Temporal history events", [one.events for one in found],
               target=Target(5_000.0)),
        Figure("resources.statements", "SQL statements, background included",
               [one.statements for one in found], target=Target(3_000.0)),
        Figure("resources.storage_requests", "storage requests, upload included",
               [one.storage_requests for one in found]),
        Figure("resources.idle_statements", "SQL statements a second, an idle API and worker", idle, "/s"),
        Figure("resources.worker_statements", "SQL statements a second, one more idle worker",
               [(more - fewer) / _MORE_WORKERS for fewer, more in zip(idle, more_idle, strict=True)], "/s"),
        Figure("resources.api_run_mib", "API's memory at its most, download included",
               [one.api_mib for one in found], "MiB"),
    ]  # fmt: skip


def _once(stack: RunningStack, path: Path, count: int) -> _Used:
    api, worker = psutil.Process(stack.pids.api[0]), psutil.Process(stack.pids.worker[0])
    for process in (api, worker):
        forget_peak(process)
    before = statements(stack), storage_requests(stack)
    with Client(stack.api) as client:
        file_id = batches.upload(client, path)
        upload_mib = peak_mib(api)
        batch = batches.run_batch(client, file_id, count)
        executed = statements(stack) - before[0]
        stored = storage_requests(stack) - before[1]
        batches.download(client, batch, path.with_suffix(".output"), count)
    recorded = asyncio.run(events(stack, batch.id))
    return _Used(upload_mib, peak_mib(api), peak_mib(worker), recorded, executed, stored)


SECTION = Section(
    "resources",
    "What a batch takes",
    "50,000 lines of 4 KB (200 MB) through the whole stack, a simulator that answers at once, 64 in flight, "
    "one worker; memory is the most each process held. As many rounds as fit a minute. Then idle stacks with "
    "one worker and with three, for ten seconds each.",
    2.0,
    measure,
)
