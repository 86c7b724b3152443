"""The processes that are measured: a simulator of its own, and the embedded stack in front of it."""

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
from tests.guard import guarded

_MIB = 1024 * 1024
_LISTENING = re.compile(r"listening on (\S+)")
_STOP_SECONDS = 60


class Totals(msgspec.Struct):
    """What the simulator says of a model."""

    asked: int
    answered: int
    first_asked_at: float | None
    last_answered_at: float | None


class Ledger(msgspec.Struct):
    asked: int
    answered: int
    models: dict[str, Totals]

    @property
    def send_seconds(self) -> float:
        """From the first request that came to the last answer that went."""
        firsts = [model.first_asked_at for model in self.models.values() if model.first_asked_at]
        lasts = [model.last_answered_at for model in self.models.values() if model.last_answered_at]
        return max(lasts) - min(firsts)


class Simulator:
    """Keeps totals only, so that a long run costs what a short one does."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        httpx.delete(f"{self.url}/admin/ledger", trust_env=False).raise_for_status()

    def ledger(self) -> Ledger:
        answer = httpx.get(f"{self.url}/admin/ledger", params={"entries": "false"}, trust_env=False)
        return msgspec.json.decode(answer.raise_for_status().content, type=Ledger)


@contextmanager
def simulator(*arguments: str, models: tuple[str, ...] = MODELS) -> Generator[Simulator]:
    """Raises SystemExit where it does not start."""
    guarded()
    command = [sys.executable, "-m", "simulator", "--no-ledger", "--models", ",".join(models), *arguments]
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


class Pids(msgspec.Struct):
    dev: int
    temporal: int
    postgres: int
    api: list[int]
    worker: list[int]


class Stack(msgspec.Struct):
    """What `batchwright dev --json` says."""

    api: str
    temporal: str
    namespace: str
    postgres: str
    data: str
    pids: Pids
    metrics: list[str]  # the API's, then each worker's

    def ours(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in (*self.pids.api, *self.pids.worker)]

    def servers(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in (self.pids.temporal, self.pids.postgres)]

    def workers(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.pids.worker]


@contextmanager
def running(
    folder: Path, backend: str, *, in_flight: int, workers: int = 1, settings: dict[str, str] | None = None
) -> Generator[Stack]:
    """The embedded stack on free ports; each worker has `in_flight` requests at once, whatever their model.

    Raises SystemExit where it does not start.
    """
    guarded()
    command = [sys.executable, "-m", "starter", "dev", "--json", "--data", str(folder), "--backend", backend]
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0", "--workers", str(workers))
    environment = os.environ | _limits(in_flight) | (settings or {})
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready:
                raise SystemExit(f"`batchwright dev` did not start; it ended with {process.wait()}.")
            yield msgspec.json.decode(ready, type=Stack)
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
    """Their user and system time, children included (PostgreSQL serves each connection by one)."""
    total = 0.0
    for process in processes:
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
    return total


def forget_peak(process: psutil.Process) -> None:
    """The most memory it ever held counts from now."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak_mib(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    held = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return held * 1024 / _MIB


def wait_until_quiet(stack: Stack, seconds: float = 5.0) -> None:
    """Until what an ended batch leaves to do is done: the stack uses little CPU for a moment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = cpu_seconds((*stack.ours(), *stack.servers()))
        time.sleep(0.5)
        if cpu_seconds((*stack.ours(), *stack.servers())) - before < 0.1:
            return
