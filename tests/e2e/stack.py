"""The whole stack as processes, started by `batchwright dev`, as the tests see it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel
from temporalio.client import Client

from batchwright.settings import load
from batchwright.temporal import connect
from tests.clients import http_client
from tests.guard import guarded

Part = Literal["temporal", "postgres", "simulator", "api", "worker"]
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b")

# Short turns and windows, so that a test sees several of them in seconds.
SETTINGS = {
    "BATCHWRIGHT_SLICE_SECONDS": "2",
    "BATCHWRIGHT_MIN_WINDOW_SECONDS": "5",
    "BATCHWRIGHT_CANCEL_GRACE_SECONDS": "3",
    "BATCHWRIGHT_EXPIRY_GRACE_SECONDS": "1",
    "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "10",
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
    """What `dev --json` prints and `dev.json` holds."""

    api: str
    temporal: str
    namespace: str
    ui: str
    postgres: str
    simulator: str | None
    data: Path
    pids: Pids
    metrics: list[str]


class Entry(BaseModel):
    """The simulator's memory of one request id."""

    key: str
    asked: int
    user: str | None = None


class Ledger(BaseModel):
    entries: list[Entry]


class Stack:
    def __init__(self, data: Path) -> None:
        self._data = data

    @property
    def now(self) -> Addresses:
        """The addresses and pids of this moment."""
        return Addresses.model_validate_json((self._data / "dev.json").read_text())

    @property
    def simulator(self) -> str:
        address = self.now.simulator
        assert address is not None
        return address

    @property
    def objects(self) -> Path:
        return self._data / "objects"

    @property
    def postmaster(self) -> int | None:
        """The pid in PostgreSQL's data: there before it is ready, and still after a kill."""
        try:
            return int((self._data / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def client(self, tenant: str = "default") -> AsyncOpenAI:
        """Without the certificates of the world, which take longer to read than a request."""
        return AsyncOpenAI(
            base_url=self.now.api + "/v1",
            api_key="none",
            default_headers={"X-Tenant": tenant},
            max_retries=5,
            http_client=DefaultAsyncHttpxClient(verify=False),
        )

    async def server(self) -> Client:
        """Of its Temporal."""
        now = self.now
        return await connect(load(temporal_address=now.temporal, temporal_namespace=now.namespace))

    def kill(self, part: Part) -> list[int]:
        """SIGKILL to every process of a part; their pids."""
        pids = self.now.pids.of(part)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    async def faults(self, **fault: str | float | int) -> None:
        async with http_client() as http:
            (await http.post(self.simulator + "/admin/faults", json=fault)).raise_for_status()

    async def heal(self) -> None:
        async with http_client() as http:
            (await http.delete(self.simulator + "/admin/faults")).raise_for_status()

    async def asked(self, user: str | None = None) -> dict[str, int]:
        """How often each request id reached the simulator: of all, or of the lines with that user."""
        async with http_client() as http:
            answer = await http.get(self.simulator + "/admin/ledger")
        ledger = Ledger.model_validate_json(answer.raise_for_status().content)
        return {entry.key: entry.asked for entry in ledger.entries if user in (None, entry.user)}


@contextmanager
def dev(*arguments: str, data: Path | None = None, **environment: str) -> Generator[Stack]:
    """`batchwright dev` on free ports; it and all it started are gone at the end."""
    guarded()
    with tempfile.TemporaryDirectory(prefix="batchwright-test-", ignore_cleanup_errors=True) as folder:
        data = data or Path(folder) / "data"
        ports = ("--port", "0", "--temporal-port", "0", "--ui-port", "0")
        command = [sys.executable, "-m", "starter", "dev", "--json", "--data", str(data), *ports, *arguments]
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
