"""`python -m bench.ingest_once DIRECTORY ORDER`: one ingestion of DIRECTORY's input, after its yardstick."""

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import orjson
import uvloop
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from activities.ingestion import Ingestion
from batchwright.contracts.ingestion import IngestResult
from batchwright.database.base import DatabaseLike
from batchwright.settings import load
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from bench.activity import Memory, input_row, order, say
from bench.inputs import MODELS
from tests.fakes.database import MemoryDatabase

_MOST_LINES, _MOST_BYTES = 10_000_000, 64 * 1024**3


class Ingested(msgspec.Struct, frozen=True):
    """`yardstick_seconds`: reading the file and parsing each line once."""

    lines: int
    seconds: float
    cpu_seconds: float
    yardstick_seconds: float
    grown_mib: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.lines * 1e6


class _Served:
    async def served_now(self) -> frozenset[str]:
        return frozenset(MODELS)

    def canonical(self, name: str) -> str:
        return name


def yardstick(path: Path) -> float:
    """Seconds of the fastest of the JSON readers that we have."""
    return min(_read(path, orjson), _read(path, msgspec))


def _read(path: Path, reader: object) -> float:
    started = time.perf_counter()
    with path.open("rb") as lines:
        if reader is orjson:
            for line in lines:
                orjson.loads(line)
        else:
            decode = msgspec.json.Decoder().decode
            for line in lines:
                decode(line)
    return time.perf_counter() - started


async def ingest(directory: Path, plan_order: str, database: DatabaseLike) -> tuple[IngestResult, float]:
    """The objects go to `directory`, whose `input` is read; the result and its seconds."""
    settings = load(
        storage_dir=directory, plan_order=plan_order, max_lines=_MOST_LINES, max_batch_file_bytes=_MOST_BYTES
    )
    ingestion = Ingestion(
        database, LocalStorage(directory), _Served(), settings, Metrics(CollectorRegistry())
    )
    started = time.perf_counter()
    result: IngestResult = await ActivityEnvironment().run(ingestion.ingest, order())
    return result, time.perf_counter() - started


async def _main(directory: Path, plan_order: str) -> None:
    path = directory / "input"
    reading = yardstick(path)
    database = MemoryDatabase()
    await database.files.insert(input_row(path.stat().st_size))
    await asyncio.to_thread(sum, ())  # threads belong to an idle worker
    memory, cpu = Memory(), time.process_time()
    result, seconds = await ingest(directory, plan_order, database)
    if result.failed:
        raise SystemExit(f"{result.errors} lines of {path} were refused")
    cpu_seconds = time.process_time() - cpu
    say(Ingested(result.total, seconds, cpu_seconds, reading, memory.grown_mib()))


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), sys.argv[2]))
