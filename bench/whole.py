"""A whole batch through the embedded stack, measured from its creation to `completed`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import msgspec
import psutil

from batchwright.contracts.openai import BatchStatus
from bench.results import Measured
from starter.client import Client

_POLL_SECONDS = 0.05
_MIB = 1024 * 1024


class Pids(msgspec.Struct):
    dev: int
    temporal: int
    postgres: int
    simulator: int
    api: list[int]
    worker: list[int]


class Stack(msgspec.Struct):
    """What `batchwright dev --json` says."""

    api: str
    simulator: str
    pids: Pids


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@contextmanager
def running(folder: Path, in_flight: int) -> Generator[Stack]:
    """The embedded stack on free ports, with as many requests in flight as the bare loop has."""
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")
    command = [sys.executable, "-m", "starter", "dev", "--json", "--data", str(folder / "data"), *ports]
    limits = {
        "BATCHWRIGHT_GLOBAL_IN_FLIGHT": str(in_flight),
        "BATCHWRIGHT_MODEL_IN_FLIGHT": str(in_flight),
        "BATCHWRIGHT_LOG_LEVEL": "WARNING",
    }
    environment = os.environ | limits
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready:
                raise SystemExit(f"`batchwright dev` did not start; it ended with {process.wait()}.")
            yield msgspec.json.decode(ready, type=Stack)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def served_models(stack: Stack) -> list[str]:
    answer = httpx.get(f"{stack.simulator}/v1/models", trust_env=False)
    return [model.id for model in msgspec.json.decode(answer.content, type=_Models).data]


def measure(stack: Stack, path: Path, count: int) -> Measured:
    workers = [psutil.Process(pid) for pid in stack.pids.worker]
    others = [psutil.Process(pid) for pid in (stack.pids.temporal, stack.pids.postgres, *stack.pids.api)]
    with Client(stack.api) as client:
        with path.open("rb") as file:
            uploaded = client.upload(file, path.name)
        before, before_others = _cpu(workers), _cpu(others)
        started, peak = time.perf_counter(), 0.0
        batch = client.create(
            file_id=uploaded.id, endpoint="/v1/chat/completions", window="1h", metadata=None
        )
        while not batch.status.is_terminal:
            peak = max(peak, *(worker.memory_info().rss / _MIB for worker in workers))
            time.sleep(_POLL_SECONDS)
            batch = client.batch(batch.id)
    seconds = time.perf_counter() - started
    if batch.status is not BatchStatus.COMPLETED or batch.request_counts.completed != count:
        raise SystemExit(f"{batch.id} ended as {batch.status.value} with {batch.request_counts}.")
    cpu = _cpu(workers) - before
    return Measured(count, seconds, cpu, peak, cpu + _cpu(others) - before_others)


def _cpu(processes: Iterable[psutil.Process]) -> float:
    """Their user and system time, children included (PostgreSQL serves each connection by one)."""
    total = 0.0
    for process in processes:
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
    return total
