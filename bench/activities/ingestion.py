"""`python -m bench.activities.ingestion DIRECTORY ORDER`: measures ingestion, the reading of a batch's input.

The program ingests the file DIRECTORY/input, and prints duration, CPU time and memory. ORDER is the order in
which the lines will be sent: `file`, `hash` or `prefix`, as in the setting BATCHWRIGHT_PLAN_ORDER.
"""

import asyncio
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import orjson
import uvloop
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.database.database import Database
from batchwright.settings import load
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from bench.activities.harness import MemoryGrowth, input_row, order, print_result
from bench.inputs import MODELS
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.rates import FixedRates
from tests.fakes.tables.batches.batch_list import MemoryBatchList
from tests.fakes.tables.batches.custom_ids import MemoryCustomIds
from tests.fakes.tables.rows import Rows

_MOST_LINES, _MOST_BYTES = 100_000_000, 64 * 1024**3


class Ingested(msgspec.Struct, frozen=True):
    """Duration, CPU time and memory of one ingestion (reading the input of a batch).

    `yardstick_seconds` is the time to read the same file and parse each line once, for comparison.
    `grown_mib` is the additional memory compared with an idle worker, in MiB.
    """

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

    def prices_of(self, model: str) -> None:
        return None

    @property
    def accepts_any_model(self) -> bool:
        return False

    def accepts_unlisted(self, model: str) -> bool:
        return False


def yardstick(path: Path) -> float:
    """Return the seconds that it takes to read a file and parse each line, for comparison with ingestion.

    The parsing is measured with orjson and with msgspec. The shorter time is returned.
    """
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


async def ingest(directory: Path, plan_order: str, database: Database) -> tuple[IngestResult, float]:
    """Ingest (read) the file `input` in `directory`, and store the resulting objects in the same directory.

    Return the result of the activity and the duration in seconds. `plan_order` is the order in which the
    lines will be sent: `file`, `hash` or `prefix`, as in the setting BATCHWRIGHT_PLAN_ORDER.
    """
    settings = load(
        storage_dir=directory, plan_order=plan_order, max_lines=_MOST_LINES, max_batch_file_bytes=_MOST_BYTES
    )
    models, metrics = ServedModels(_Served(), FixedRates()), Metrics(CollectorRegistry())
    ingestion = Ingestion(database, LocalStorage(directory), models, settings, metrics)
    started = time.perf_counter()
    result: IngestResult = await ActivityEnvironment().run(ingestion.ingest, order())
    return result, time.perf_counter() - started


def measured_database() -> Database:
    """Return a database in memory that does not store the custom ids of lines.

    In production, the database server stores the custom ids, not the worker. If this database stored the
    custom ids, the measured memory would be higher by 7 bytes for each line.
    """
    memory, other = MemoryDatabase(), Rows()
    tables: dict[str, Any] = {field.name: getattr(memory, field.name) for field in fields(Database)}
    # A table that does not know the batch stores nothing.
    tables["custom_ids"] = MemoryCustomIds(other, MemoryBatchList(other))
    return Database(**tables)


async def _main(directory: Path, plan_order: str) -> None:
    path = directory / "input"
    reading = yardstick(path)
    database = measured_database()
    await database.files.insert(input_row(path.stat().st_size))
    await asyncio.to_thread(sum, ())  # start the thread pool, which an idle worker has, too
    memory, cpu = MemoryGrowth(), time.process_time()
    result, seconds = await ingest(directory, plan_order, database)
    if result.failed:
        raise SystemExit(f"{result.error_count} lines of {path} were refused")
    cpu_seconds = time.process_time() - cpu
    print_result(Ingested(result.total, seconds, cpu_seconds, reading, memory.grown_mib()))


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), sys.argv[2]))
