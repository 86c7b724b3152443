"""Starts processes for a benchmark: a simulated backend, and an embedded stack that sends requests to it.

An embedded stack consists of all services (API, workers, PostgreSQL and Temporal) on one machine.
"""

import os
import re
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

from bench.inputs import MODELS
from tests.guard import start_guard

_MIB = 1024 * 1024
_LISTENING = re.compile(r"listening on (\S+)")
_STOP_SECONDS = 60


class SentTotals(msgspec.Struct):
    """Totals of one model in the ledger, the simulator's record of received requests.

    Times are Unix seconds.
    """

    requests: int
    completed: int
    first_request_at: float | None
    last_completed_at: float | None


class SentRequest(msgspec.Struct):
    """Times of one line in the simulator's ledger (its record of received requests), in Unix seconds.

    `user` is the field `user` of the request body.
    """

    user: str | None
    first_request_at: float
    last_completed_at: float | None


class LedgerTotals(msgspec.Struct):
    requests: int
    completed: int
    in_flight: int
    models: dict[str, SentTotals]
    entries: list[SentRequest]

    @property
    def send_seconds(self) -> float:
        """Seconds from the first request to the last response, over all models."""
        firsts = [model.first_request_at for model in self.models.values() if model.first_request_at]
        lasts = [model.last_completed_at for model in self.models.values() if model.last_completed_at]
        return max(lasts) - min(firsts)


class Simulator:
    """A running simulated backend."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        httpx.delete(f"{self.url}/admin/ledger", trust_env=False).raise_for_status()

    def ledger(self, *, entries: bool = False) -> LedgerTotals:
        parameters = {"entries": str(entries).lower()}
        answer = httpx.get(f"{self.url}/admin/ledger", params=parameters, trust_env=False)
        return msgspec.json.decode(answer.raise_for_status().content, type=LedgerTotals)


@contextmanager
def simulator(
    *arguments: str, models: tuple[str, ...] = MODELS, entries: bool = False
) -> Generator[Simulator]:
    """Context manager that starts a simulated backend in a separate process, and yields it.

    The process is stopped at the end.

    Args:
        arguments: further command-line arguments of the simulator.
        entries: True to record the times of each request. False to record only totals. The simulator's work
            for a request then does not grow with the number of earlier requests.

    Raises:
        SystemExit: the process did not start.
    """
    start_guard()
    command = [
        sys.executable,
        "-m",
        "batchwright.simulator",
        "--ledger" if entries else "--no-ledger",
        "--models",
        ",".join(models),
        *arguments,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = _LISTENING.search(said)
            if found is None:
                raise SystemExit(f"the simulator did not start: {said}")
            yield Simulator(found[1])
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)


class StackPids(msgspec.Struct):
    dev: int
    temporal: int
    postgres: int
    api: list[int]
    worker: list[int]


class RunningStack(msgspec.Struct):
    """Addresses and process ids of a running embedded stack (all services of Batchwright on one machine).

    `batchwright dev --json` prints them.
    """

    api: str
    temporal: str
    namespace: str
    postgres: str
    data: str
    pids: StackPids
    metrics: list[str]  # of the API, then of each worker

    def ours(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in (*self.pids.api, *self.pids.worker)]

    def servers(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in (self.pids.temporal, self.pids.postgres)]

    def workers(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.pids.worker]


@contextmanager
def running_stack(
    folder: Path,
    backend: str | Path,
    *,
    in_flight: int,
    workers: int = 1,
    settings: dict[str, str] | None = None,
) -> Generator[RunningStack]:
    """Context manager that starts all services of Batchwright on free ports, and yields their addresses.

    The services (the embedded stack) are started with `batchwright dev`, and stopped at the end.

    Args:
        folder: directory for the data of the stack.
        backend: URL of the backend, or path of a registry file.
        in_flight: maximum number of requests in flight for each worker and model.
        settings: further environment variables.

    Raises:
        SystemExit: the stack did not start.
    """
    start_guard()
    command = [
        sys.executable,
        "-m",
        "batchwright.starter",
        "dev",
        "--json",
        "--data",
        str(folder),
        *(() if isinstance(backend, Path) else ("--backend", backend)),
    ]
    registry = {"BATCHWRIGHT_REGISTRY": str(backend)} if isinstance(backend, Path) else {}
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0", "--workers", str(workers))
    environment = os.environ | _limits(in_flight) | registry | (settings or {})
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready:
                raise SystemExit(f"`batchwright dev` did not start; it ended with {process.wait()}.")
            yield msgspec.json.decode(ready, type=RunningStack)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_SECONDS)


def _limits(in_flight: int) -> dict[str, str]:
    return {
        "BATCHWRIGHT_GLOBAL_IN_FLIGHT": str(in_flight),
        "BATCHWRIGHT_MODEL_IN_FLIGHT": str(in_flight),
        "BATCHWRIGHT_MAX_LIVE_BATCHES": "0",
        "BATCHWRIGHT_LOG_LEVEL": "WARNING",
    }


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that the processes have used so far, in seconds.

    Child processes are included, because PostgreSQL has one for each connection.
    """
    total = 0.0
    for process in processes:
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
    return total


def forget_peak(process: psutil.Process) -> None:
    """Reset the recorded peak memory of a process. `peak_mib` then returns the peak since this call."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak_mib(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    held = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return held * 1024 / _MIB


def wait_until_quiet(stack: RunningStack) -> None:
    """Wait until the stack uses little CPU for half a second, but not longer than 5 seconds.

    After the end of a batch, the stack continues to work for a moment.
    """
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        before = cpu_seconds((*stack.ours(), *stack.servers()))
        time.sleep(0.5)
        if cpu_seconds((*stack.ours(), *stack.servers())) - before < 0.1:
            return
