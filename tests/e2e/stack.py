"""The whole stack as processes, started by `batchwright dev`, with helpers for tests."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel
from temporalio.client import Client

from batchwright.settings import load
from batchwright.temporal import connect
from tests.e2e.backend import Backend
from tests.guard import start_guard

Part = Literal["temporal", "postgres", "simulator", "api", "worker"]
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")

# Short turns and windows, so that a test sees several of them in seconds.
SETTINGS = {
    "BATCHWRIGHT_SLICE_SECONDS": "2",
    "BATCHWRIGHT_MIN_WINDOW_SECONDS": "5",
    "BATCHWRIGHT_CANCEL_GRACE_SECONDS": "3",
    "BATCHWRIGHT_EXPIRY_GRACE_SECONDS": "1",
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "20",
    "BATCHWRIGHT_DRAIN_SECONDS": "5",
    "BATCHWRIGHT_MAX_LIVE_BATCHES": "0",
}


class Pids(BaseModel):
    dev: int
    temporal: int
    postgres: int
    simulator: int | None = None
    api: list[int]
    worker: list[int]

    def of(self, part: Part) -> list[int]:
        pids: int | list[int] | None = self.model_dump()[part]
        return pids if isinstance(pids, list) else [pids] if pids else []


class Addresses(BaseModel):
    """The addresses and process ids of the stack, as `dev --json` prints them and as `dev.json` contains
    them.
    """

    api: str
    temporal: str
    namespace: str
    ui: str
    postgres: str
    simulator: str | None
    data: Path
    pids: Pids
    metrics: list[str]


class Stack:
    def __init__(self, data: Path) -> None:
        self._data = data

    @property
    def now(self) -> Addresses:
        """Current addresses and process ids. They change when a service is restarted."""
        return Addresses.model_validate_json((self._data / "dev.json").read_text())

    @property
    def simulator(self) -> str:
        address = self.now.simulator
        assert address is not None
        return address

    @property
    def backend(self) -> Backend:
        """The faults and the ledger of the simulator."""
        return Backend(self.simulator)

    @property
    def objects(self) -> Path:
        return self._data / "objects"

    @property
    def postmaster(self) -> int | None:
        """Process id in the file of PostgreSQL's data directory; None if there is no such file.

        The file exists before PostgreSQL is ready, and remains after PostgreSQL was killed.
        """
        try:
            return int((self._data / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def client(self, tenant: str = "default") -> AsyncOpenAI:
        """Return the official OpenAI client for the API, as this tenant.

        It does not load CA certificates, because loading takes longer than a request.
        """
        return AsyncOpenAI(
            base_url=self.now.api + "/v1",
            api_key="none",
            default_headers={"X-Tenant": tenant},
            max_retries=5,
            http_client=DefaultAsyncHttpxClient(verify=False),
        )

    async def server(self) -> Client:
        """Return a client of the stack's Temporal server."""
        now = self.now
        return await connect(load(temporal_address=now.temporal, temporal_namespace=now.namespace))

    def kill(self, part: Part) -> list[int]:
        """Kill all processes of a part of the stack with SIGKILL. Return their process ids."""
        pids = self.now.pids.of(part)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    async def faults(self, **fault: str | float | int) -> None:
        await self.backend.faults(**fault)

    async def heal(self) -> None:
        await self.backend.heal()

    async def requests_by_id(self, user: str | None = None) -> dict[str, int]:
        """Return the number of requests that the simulator received, by request id.

        Args:
            user: count only requests with this value of the field `user`; None counts all requests.
        """
        entries = (await self.backend.ledger()).entries
        return {entry.key: entry.requests for entry in entries if user in (None, entry.user)}


@contextmanager
def dev(*arguments: str, data: Path | None = None, **environment: str) -> Generator[Stack]:
    """Context manager that runs `batchwright dev` on free ports, yields the stack, and stops it at the end.

    Args:
        arguments: further options of `batchwright dev`.
        data: data directory; None for a temporary directory.
        environment: further environment variables.
    """
    with tempfile.TemporaryDirectory(prefix="batchwright-test-", ignore_cleanup_errors=True) as folder:
        program = (sys.executable, "-m", "batchwright.starter")
        with dev_of(program, arguments, data or Path(folder) / "data", environment) as stack:
            yield stack


@contextmanager
def dev_of(
    program: Sequence[str], arguments: Sequence[str], data: Path, environment: Mapping[str, str]
) -> Generator[Stack]:
    """Run another program in the same way as `dev` runs `batchwright dev`, such as the command of an
    installed wheel.
    """
    start_guard()
    ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")
    command = [*program, "dev", "--json", "--data", str(data), *ports, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, **SETTINGS, **environment}, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        try:
            assert ready, f"`{' '.join(command)}` ended with {process.wait(60)}"
            assert json.loads(ready)["pids"]["dev"] == process.pid
            yield Stack(data)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(240)
