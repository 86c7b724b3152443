"""`python -m bench.activities.finalization settle|finalize DIRECTORY [BYTES]`: measures finalization.

Finalization writes the output files of a batch. The program has two commands:

- `settle` prepares a batch in DIRECTORY. Each line of the batch has a result of about BYTES bytes.
- `finalize` finalizes this batch, and prints the duration, CPU time and memory of the finalization.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from batchwright.activities.finalization.activity import Finalization
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.rules.ids import request_id
from batchwright.rules.planning.plan_format import walk_entries
from batchwright.rules.results.output_lines import result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import load
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from bench.activities.harness import BATCH_ID, CREATED, TENANT, MemoryGrowth, input_row, order, print_result
from bench.activities.ingestion import ingest
from tests.fakes.memory_database import MemoryDatabase

_SLICE_LINES = 256
_PIECE_BYTES = 1024 * 1024
_USAGE = Usage(input_tokens=100, output_tokens=200)


class Finalized(msgspec.Struct, frozen=True):
    """Duration, CPU time and memory of one finalization (writing the output files of a batch).

    `yardstick_seconds` is the time of a plain copy of the same results to one file, with fsync, for
    comparison. `grown_mib` is the additional memory compared with an idle worker, in MiB.
    """

    lines: int
    result_bytes: int
    seconds: float
    cpu_seconds: float
    yardstick_seconds: float
    grown_mib: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.lines * 1e6


async def settle(directory: Path, result_bytes: int) -> None:
    """Prepare a batch in `directory` for finalization (writing the output files of the batch).

    1. Ingest (read) the file `input`.
    2. Write a segment (file of results) for each slice (part of the batch). The response for each line has
       about `result_bytes` bytes.
    3. Write the result of the ingestion to the file `result`.
    """
    database = MemoryDatabase()
    await database.files.insert(input_row((directory / "input").stat().st_size))
    result, _ = await ingest(directory, "prefix", database)
    storage = LocalStorage(directory)
    for share in result.models:
        plan = await storage.get(object_keys.plan(result.ingest_prefix, share.safe_model))
        for number, offsets in enumerate(_slices(plan)):
            folder = object_keys.slice_results(TENANT, BATCH_ID, share.safe_model, number)
            await storage.put(object_keys.segment(folder, 0, 1, "nonce", 0), _segment(offsets, result_bytes))
    (directory / "result").write_text(result.model_dump_json())


def _slices(plan: bytes) -> Iterator[list[int]]:
    offsets = [offset for offset, _, _ in walk_entries(plan)]
    return (offsets[at : at + _SLICE_LINES] for at in range(0, len(offsets), _SLICE_LINES))


def _segment(offsets: list[int], result_bytes: int) -> bytes:
    writer = SegmentWriter()
    for offset in offsets:
        body = b'{"choices":[{"message":{"content":"%b"}}]}' % (b"an answer " * (result_bytes // 10))
        line = result_line(
            request_id(BATCH_ID, offset), f"line-{offset}", status_code=200, backend_request_id="", body=body
        )
        writer.add(SegmentRecord(RecordKind.SETTLED, offset, line, success=True, usage=_USAGE))
    return writer.finish()


def yardstick(directory: Path) -> tuple[float, int]:
    """Copy all segments (files of results) to one file, to compare finalization with a plain copy.

    Return the duration in seconds and the number of copied bytes.
    """
    root = directory / object_keys.results_root(TENANT, BATCH_ID)
    copy = directory / "copy"
    started, size = time.perf_counter(), 0
    with copy.open("wb") as out:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                with path.open("rb") as segment:
                    while piece := segment.read(_PIECE_BYTES):
                        size += out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    seconds = time.perf_counter() - started
    copy.unlink()
    return seconds, size


class _NoRouters:
    def router_for(self, model: str) -> None:
        return None


async def _finalize(directory: Path) -> None:
    result = IngestResult.model_validate_json((directory / "result").read_text())
    database = await _database(directory, result)
    copying, size = yardstick(directory)
    finalization = Finalization(
        database,
        LocalStorage(directory),
        load(storage_dir=directory),
        Metrics(CollectorRegistry()),
        _NoRouters(),
    )
    request = FinalizeRequest(
        order=order(),
        ingest_prefix=result.ingest_prefix,
        models=result.models,
        total=result.total,
        status=BatchStatus.COMPLETED,
    )
    await asyncio.to_thread(sum, ())
    memory, cpu, started = MemoryGrowth(), time.process_time(), time.perf_counter()
    done: FinalizeResult = await ActivityEnvironment().run(finalization.finalize, request)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    if done.completed != result.total:
        raise SystemExit(f"{done.completed} of {result.total} lines came out")
    print_result(Finalized(result.total, size, seconds, cpu_seconds, copying, memory.grown_mib()))


async def _database(directory: Path, result: IngestResult) -> MemoryDatabase:
    """Return a database in memory with the batch, in the state before finalization."""
    database = MemoryDatabase()
    await database.files.insert(input_row((directory / "input").stat().st_size))
    await database.batches.upsert(order())
    models = [ModelCounts(model=share.model, lines=share.lines) for share in result.models]
    await database.batches.start(
        TENANT,
        BATCH_ID,
        total=result.total,
        models=models,
        at=CREATED,
        unserved=0,
    )
    return database


if __name__ == "__main__":
    if sys.argv[1] == "settle":
        uvloop.run(settle(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        uvloop.run(_finalize(Path(sys.argv[2])))
