"""Runs one very large batch through the whole stack, and measures memory, history and time."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from pydantic import BaseModel
from temporalio.client import Client as TemporalClient

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.client import Client
from tests.e2e.batches import CHAT
from tests.e2e.stack import MODELS, Stack, dev
from tests.guard import start_guard

_MIB = 1024 * 1024
_LOOK_SECONDS = 0.2
_LISTENING = re.compile(r"listening on (\S+)")
_ID = re.compile(rb'"custom_id":"line-(\d+)"')


class Measured(BaseModel):
    """The measurements of one batch.

    Attributes:
        ingesting, running, finalizing: duration of the phase in seconds.
        peaks: peak memory of each worker in MiB until the end of a phase, by status of the batch.
        runs: number of history events of each workflow run.
        requests: number of requests that the backend received.
        in_order: number of output lines, from the first one on, that are in the order of the input.
    """

    lines: int
    input_bytes: int
    status: str
    completed: int
    ingesting: float  # seconds, each of them
    running: float
    finalizing: float
    peaks: dict[str, list[float]]
    runs: list[int]
    requests: int  # requests that reached the backend
    in_order: int  # output lines in the input's order, from the first on

    @property
    def rate(self) -> float:
        """Lines per second, from the creation of the batch to its end."""
        return self.lines / (self.ingesting + self.running + self.finalizing)


def write_input(path: Path, lines: int) -> int:
    """Write an input file of `lines` lines, and return its size in bytes."""
    with path.open("w") as file:
        for number in range(lines):
            model = MODELS[number % len(MODELS)]
            body = f'{{"model":"{model}","messages":[{{"role":"user","content":"{number}"}}]}}'
            file.write(f'{{"custom_id":"line-{number}","method":"POST","url":"{CHAT}","body":{body}}}\n')
        return file.tell()


async def soak(lines: int, workers: int) -> Measured:
    """Start a stack, run the batch on it, and return the measurements. Its files are deleted at the end."""
    limits = {
        "BATCHWRIGHT_MAX_LINES": str(lines),
        "BATCHWRIGHT_MAX_BATCH_FILE_BYTES": str(1024 * _MIB),
        "BATCHWRIGHT_SLICE_SECONDS": "30",
        "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "30",
        "BATCHWRIGHT_LOG_LEVEL": "WARNING",
    }
    with tempfile.TemporaryDirectory(prefix="batchwright-soak-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "input.jsonl"
        size = write_input(path, lines)
        with (
            simulator() as backend,
            dev(
                "--workers", str(workers), "--backend", backend, data=Path(folder) / "data", **limits
            ) as stack,
        ):
            return await _measure(stack, backend, path, lines, size)


async def _measure(stack: Stack, backend: str, path: Path, lines: int, size: int) -> Measured:
    with Client(stack.now.api) as client, peaks_of(stack.now.pids.worker) as peaks:
        with path.open("rb") as file:
            uploaded = client.upload(file, path.name)
        started = time.monotonic()
        batch = client.create(file_id=uploaded.id, endpoint=CHAT, window="24h", metadata=None)
        seen: dict[str, float] = {}
        grown: dict[str, list[float]] = {}
        while not batch.status.is_terminal:
            time.sleep(_LOOK_SECONDS)  # noqa: ASYNC251 - nothing else runs on this loop
            grown[batch.status] = list(peaks)
            batch = client.batch(batch.id)
            seen.setdefault(batch.status, time.monotonic() - started)
        in_order = _in_order(client, batch)
    end = seen[batch.status]
    running = seen.get("in_progress", end)
    finalizing = seen.get("finalizing", end)
    return Measured(
        lines=lines,
        input_bytes=size,
        status=batch.status,
        completed=batch.request_counts.completed,
        ingesting=running,
        running=finalizing - running,
        finalizing=end - finalizing,
        peaks=grown,
        runs=await _runs(stack, batch.id),
        requests=_request_count(backend),
        in_order=in_order,
    )


@contextmanager
def simulator() -> Generator[str]:
    """Run a simulated backend that only counts requests, and yield its URL."""
    start_guard()
    command = [
        sys.executable,
        "-m",
        "batchwright.simulator",
        "--no-ledger",
        "--latency-ms",
        "5",
        "--models",
        ",".join(MODELS),
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = _LISTENING.search(line)
        try:
            assert found, f"`{' '.join(command)}` said: {line}"
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def peaks_of(pids: list[int]) -> Generator[list[float]]:
    """Context manager that yields a list with the peak memory of each process in MiB, and updates it."""
    peaks, stopped = [0.0] * len(pids), threading.Event()
    processes = [psutil.Process(pid) for pid in pids]

    def look() -> None:
        while not stopped.wait(_LOOK_SECONDS):
            for place, process in enumerate(processes):
                with suppress(psutil.NoSuchProcess):
                    peaks[place] = max(peaks[place], process.memory_info().rss / _MIB)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peaks
    finally:
        stopped.set()
        looking.join()


async def _runs(stack: Stack, batch_id: str) -> list[int]:
    temporal = await TemporalClient.connect(stack.now.temporal, namespace=stack.now.namespace)
    found = temporal.list_workflows(f"WorkflowId STARTS_WITH '{batch_id}'")
    return sorted([run.history_length async for run in found], reverse=True)


def _request_count(backend: str) -> int:
    answer = httpx.get(f"{backend}/admin/ledger", params={"entries": "false"}, trust_env=False)
    return answer.raise_for_status().json()["requests"]


def _in_order(client: Client, batch: BatchObject) -> int:
    if batch.output_file_id is None:
        return 0
    expected = 0
    with client.content(batch.output_file_id) as pieces:
        for line in _lines(pieces):
            found = _ID.search(line)
            if found is None or int(found[1]) != expected:
                return expected
            expected += 1
    return expected


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
