"""Ingestion of the largest batch allowed: seconds, and memory above that of an idle process."""

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from activities.ingestion import Ingestion
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import Endpoint
from batchwright.database.rows import FileRow
from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase

LINES = 50_000
LINE_BYTES = 4_190  # 200 MiB in all, almost
_MODELS = ("small", "medium", "large")
_MIB = 1024 * 1024
_CREATED = datetime(2026, 1, 1, tzinfo=UTC)


class Measured(msgspec.Struct):
    seconds: float
    peak_mib: float  # above idle
    lines: int
    input_mib: float


class _Served:
    async def served(self) -> frozenset[str]:
        return frozenset(_MODELS)


def run() -> Measured:
    """Measures in a fresh process, whose peak is ingestion's and nothing else's."""
    with tempfile.TemporaryDirectory(prefix="batchwright-bench-") as directory:
        size = asyncio.run(_generate(LocalStorage(Path(directory))))
        command = [sys.executable, "-m", "bench.ingestion", directory, str(size)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found = msgspec.json.decode(answer, type=Measured)
    print(
        f"ingestion of {found.lines:,} lines, {found.input_mib:.0f} MiB: {found.seconds:.1f} s, "
        f"{found.peak_mib:.0f} MiB above idle"
    )
    return found
    return found


async def _generate(storage: Storage) -> int:
    """Chat requests over three models and 200 system prompts, in random order; the file's size."""
    chance = random.Random(0)
    words = [f"word{number}" for number in range(1_000)]
    systems = [" ".join(chance.choices(words, k=150)) for _ in range(200)]
    text = " ".join(chance.choices(words, k=40_000))
    size = 0
    async with storage.writer("input") as writer:
        for number in range(LINES):
            line = _line(
                number, chance.choice(_MODELS), chance.choice(systems), chance.choice(text) + text, size
            )
            await writer.write(line)
            size += len(line)
    return size


def _line(number: int, model: str, system: str, text: str, seed: int) -> bytes:
    start = seed % 100_000
    head = (
        f'{{"custom_id":"request-{number}","method":"POST","url":"/v1/chat/completions","body":{{"model":"{model}",'
        f'"max_tokens":256,"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"'
    )
    tail = '"}]}}\n'
    return (head + text[start : start + LINE_BYTES - len(head) - len(tail)] + tail).encode()


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


async def _measure(directory: Path, size: int) -> Measured:
    storage, database = LocalStorage(directory), MemoryDatabase()
    settings = load(storage_dir=directory)
    ingestion = Ingestion(database, storage, _Served(), settings, Metrics(CollectorRegistry()))
    await database.files.insert(_input(size))
    await asyncio.to_thread(sum, ())  # threads belong to an idle worker
    _reset_peak()
    idle = psutil.Process(os.getpid()).memory_info().rss
    started = time.perf_counter()
    result: IngestResult = await ActivityEnvironment().run(ingestion.ingest, _order())
    seconds = time.perf_counter() - started
    peak = (_peak_bytes() - idle) / _MIB
    return Measured(round(seconds, 2), round(peak, 1), result.total, round(size / _MIB, 1))


def _input(size: int) -> FileRow:
    return FileRow(
        id="file-input",
        tenant="bench",
        purpose="batch",
        filename="input.jsonl",
        bytes=size,
        created_at=_CREATED,
        storage_key="input",
    )


def _order() -> BatchOrder:
    return BatchOrder(
        batch_id="batch_bench",
        tenant="bench",
        input_file_id="file-input",
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=_CREATED,
        expires_at=_CREATED + timedelta(days=1),
    )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        run()
    else:
        measured = asyncio.run(_measure(Path(sys.argv[1]), int(sys.argv[2])))
        print(msgspec.json.encode(measured).decode())
