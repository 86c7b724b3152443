"""The index of a large batch that runs is on the local disk, and is the same as in memory."""

import random
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Literal

import pytest

from batchwright.api.services.live_results.settled_line_index import LiveIndex, Settlement, open_index
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.rules.planning.duplicate_list import Duplicate, encode_duplicates
from batchwright.rules.planning.plan_format import PlanDamaged, pack_entry
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectInfo
from batchwright.storage.local import LocalStorage
from batchwright.storage.spill import columns
from batchwright.storage.spill.columns import Columns, ColumnSpace
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, a_segment, an_order

MIB = 1024 * 1024
PREFIX = "ingest"
LINE_BYTES = 100


class RunningBatch:
    """A batch of one model. Its lines are planned in another order than in the input, and the last lines are
    duplicates.
    """

    def __init__(self, folder: Path, lines: int, duplicates: int = 0) -> None:
        self.storage, self._lines, self._duplicates = LocalStorage(folder / "storage"), lines, duplicates
        self._spool = folder / "spool"

    async def prepare(self) -> None:
        places = list(range(self._lines))
        random.Random(1).shuffle(places)
        plan = b"".join([pack_entry((place * LINE_BYTES, LINE_BYTES, 0)) for place in places])
        await self.storage.put(object_keys.plan(PREFIX, "a"), plan)
        copies = [
            Duplicate((self._lines + n) * LINE_BYTES, n % 7 * LINE_BYTES, f"copy-{n}")
            for n in range(self._duplicates)
        ]
        await self.storage.put(object_keys.duplicates(PREFIX, "a"), encode_duplicates(copies))

    async def index(self) -> LiveIndex:
        share = ModelShare(
            model="a", safe_model="a", lines=self._lines, slices=1, duplicates=self._duplicates
        )
        ingested = IngestResult(ingest_prefix=PREFIX, models=[share])
        space = ColumnSpace(self._spool)
        return await open_index(self.storage, an_order(), ingested, space, 0)

    async def settle(self, sequence: int, lines: list[int]) -> ObjectInfo:
        """Store one segment in which these lines have succeeded."""
        records = [
            SegmentRecord(RecordKind.SETTLED, line * LINE_BYTES, b"%d" % line, success=True) for line in lines
        ]
        folder = object_keys.slice_results(TENANT, BATCH_ID, "a", 0)
        key = object_keys.segment(folder, 0, 1, "nonce", sequence)
        data = a_segment(records)
        await self.storage.put(key, data)
        return ObjectInfo(key, len(data))


def mapped_memory(folder: Path) -> int:
    """Return how many bytes of the files in a folder this process has in its memory."""
    found, in_folder = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            in_folder = f"{folder}/" in line
        elif name == "Rss:" and in_folder:
            found += int(rest[0]) * 1024
    return found


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    monkeypatch.setattr(columns, "_SPILL_BYTES", 0)


@pytest.mark.usefixtures("on_disk")
async def test_an_index_on_disk_holds_a_few_bytes_of_each_line_in_memory(tmp_path: Path) -> None:
    lines = 250_000
    batch = RunningBatch(tmp_path, lines)
    await batch.prepare()
    segments = [await batch.settle(n, list(range(n, lines, 100))) for n in range(10)]
    tracemalloc.start()
    try:
        index = await batch.index()
        await index.add_segments(segments)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(index), len(list(index.settlements(0, lines)))) == (lines, lines // 10)
    assert held < 2 * MIB
    assert peak < 16 * MIB


@pytest.mark.usefixtures("on_disk")
async def test_an_index_on_disk_finds_lines_and_duplicates_of_a_batch(tmp_path: Path) -> None:
    lines, duplicates = 70_000, 3_000  # more than one piece of the plan, and more than one sorted run
    batch = RunningBatch(tmp_path, lines, duplicates)
    await batch.prepare()
    index = await batch.index()
    assert len(index) == lines + duplicates
    assert not index.is_settled(lines + 7)
    await batch.settle(1, [0, 69_999, 5])
    await index.refresh()
    settled = [line for line in range(len(index)) if index.is_settled(line)]
    copies = [lines + n for n in range(duplicates) if n % 7 in (0, 5)]
    assert settled == [0, 5, 69_999, *copies]
    of_first = [0, *(lines + n for n in range(0, duplicates, 7))]
    found = list(index.settlements(0, 10_000))
    assert found[: len(of_first)] == [Settlement(line, success=True) for line in of_first]
    assert len(found) == len(settled)
    assert await index.read([69_999, 5]) == [b"69999", b"5"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the memory of each mapping")
@pytest.mark.usefixtures("on_disk")
async def test_an_index_on_disk_that_is_read_is_not_counted_as_memory(tmp_path: Path) -> None:
    lines = 140_000  # so many that the pages are released twice, the second time after the last line
    batch = RunningBatch(tmp_path, lines)
    await batch.prepare()
    index = await batch.index()
    assert index.find("batch_req_unknown") is None
    assert mapped_memory(tmp_path) == 0
    for start in range(0, lines, 10_000):
        assert not any(map(index.is_settled, range(start, start + 10_000)))
        index.count_use(10_000)
    assert mapped_memory(tmp_path) == 0


async def test_columns_of_an_index_are_created_in_threads_so_that_other_requests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, new_columns = list[threading.Thread](), ColumnSpace.new_columns

    def recorded(space: ColumnSpace, *wanted: tuple[Literal["B", "i", "I", "Q"], int]) -> Columns:
        created.append(threading.current_thread())
        return new_columns(space, *wanted)

    monkeypatch.setattr(ColumnSpace, "new_columns", recorded)
    batch = RunningBatch(tmp_path, 3)
    await batch.prepare()
    await batch.index()
    assert len(created) == 2
    assert threading.main_thread() not in created


async def test_a_plan_that_is_cut_off_is_damaged(tmp_path: Path) -> None:
    batch = RunningBatch(tmp_path, 2)
    await batch.storage.put(object_keys.plan(PREFIX, "a"), pack_entry((0, 1, 0)) + b"1")
    with pytest.raises(PlanDamaged):
        await batch.index()


async def test_a_plan_with_a_line_before_the_input_is_damaged(tmp_path: Path) -> None:
    batch = RunningBatch(tmp_path, 1)
    await batch.storage.put(object_keys.plan(PREFIX, "a"), pack_entry((-1, 1, 0)))
    with pytest.raises(PlanDamaged, match="before the input"):
        await batch.index()
