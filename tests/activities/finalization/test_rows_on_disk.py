"""A batch is finalized in the same way if its records about settled lines do not fit into memory.

The records are on the local disk then.
"""

import asyncio
import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from batchwright.activities.stored_results.record_rows import RecordRows
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.rules.results.segment_format import SegmentRecord
from batchwright.storage.base import StorageFull
from batchwright.storage.spill import spilled_bytes
from batchwright.storage.spill.scratch_file import ScratchFile
from tests.activities.finalization.settled_batch import (
    BATCH_ID,
    INPUT_KEY,
    TENANT,
    SettledBatch,
    a_batch,
    names,
)
from tests.activities.finalization.test_duplicate_results import Repetitive
from tests.activities.ingestion.test_attempts import open_below
from tests.fakes.small_memory import rows_on_disk

LINES = 12
Settlement = tuple[int, str]  # number of a line, and the kind of a record about it
Segments = list[list[Settlement]]
kinds = st.sampled_from(["success", "failure", "dead letter", "attempt"])
segments_of_lines = st.lists(st.lists(st.tuples(st.integers(0, LINES - 1), kinds), max_size=6), max_size=6)


class Ended(NamedTuple):
    result: FinalizeResult
    output: bytes
    error: bytes
    row: BatchRow


def records_of(batch: SettledBatch, segment: Segments) -> Iterable[list[SegmentRecord]]:
    for number, settlements in enumerate(segment):
        records: list[SegmentRecord] = []
        for n, kind in settlements:
            if kind in ("attempt", "dead letter"):
                records.append(batch.attempt(n, number, final=kind == "dead letter"))
            if kind != "attempt":
                records.append(batch.success(n, str(number), 2) if kind == "success" else batch.failure(n))
        yield records


async def ended(segments: Segments, unserved: frozenset[int], *, lost: bool) -> Ended:
    batch = await a_batch(lines=LINES, models=("a", "b", "c"), unserved=unserved)
    served = [[one for one in segment if one[0] not in unserved] for segment in segments]
    for sequence, records in enumerate(records_of(batch, served)):
        await batch.put(records, sequence=sequence)
    if lost:
        await batch.storage.delete(INPUT_KEY)
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    times = ("completed_at", "expired_at", "finalizing_at", "results_kept_until")
    without_times = row.model_copy(update=dict.fromkeys(times))
    return Ended(result, await batch.content("output"), await batch.content("error"), without_times)


@settings(deadline=None, max_examples=30)
@given(segments=segments_of_lines, unserved=st.frozensets(st.integers(0, LINES - 1)), lost=st.booleans())
async def test_a_batch_ends_alike_with_its_rows_in_memory_and_on_disk(
    segments: Segments, unserved: frozenset[int], lost: bool
) -> None:
    in_memory = await ended(segments, unserved, lost=lost)
    with pytest.MonkeyPatch.context() as environment:
        rows_on_disk(environment)
        on_disk = await ended(segments, unserved, lost=lost)
    assert on_disk == in_memory


@settings(deadline=None, max_examples=15)
@given(texts=st.text("uvwx", min_size=1, max_size=20), failing=st.sets(st.integers(0, 19)))
async def test_duplicates_get_the_same_results_with_their_rows_on_disk(texts: str, failing: set[int]) -> None:
    async def written() -> list[object]:
        batch = Repetitive(*texts)
        result = await batch.ingested()
        for n in {texts.index(text) for text in texts}:
            await batch.settle(n, code=400 if n in failing else 200, final=n in failing)
        ended = await batch.finalized(result)
        letters, _ = await batch.database.dead_letters.page(tenant=None, batch_id=None, limit=99, after=None)
        return [
            ended,
            await batch.file("output"),
            await batch.file("error"),
            [letter.dead_letter for letter in letters],
        ]

    in_memory = await written()
    with pytest.MonkeyPatch.context() as environment:
        rows_on_disk(environment)
        assert await written() == in_memory


async def a_half_settled_batch(spool_dir: Path) -> SettledBatch:
    batch = await a_batch(lines=LINES)
    batch.spool_dir = spool_dir
    await batch.put([batch.attempt(n, 1) for n in range(LINES)])
    await batch.put([batch.success(n) for n in range(0, LINES, 2)], sequence=1)
    return batch


async def failure_or_result(
    batch: SettledBatch, request: FinalizeRequest
) -> FinalizeResult | ApplicationError:
    try:
        return await batch.finalize(request)
    except ApplicationError as error:
        return error


async def test_wherever_the_disk_is_full_the_attempt_is_retried_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_on_disk(monkeypatch)
    left = 0

    class FullDisk(ScratchFile):
        """A file on a disk that becomes full after `left` more writes. The next write stores only half of its
        bytes.
        """

        def write(self, data: bytes | memoryview) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                super().write(data)
                return
            super().write(memoryview(data)[: len(data) // 2])
            raise StorageFull(os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spilled_bytes, "ScratchFile", FullDisk)
    batch = await a_half_settled_batch(tmp_path)
    request, before = batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED), set(batch.memory.objects)
    writes = 0
    while isinstance(result := await failure_or_result(batch, request), ApplicationError):
        assert (result.type, result.non_retryable) == (Failure.STORAGE_UNAVAILABLE, False)
        assert open_below(tmp_path) == []
        assert set(batch.memory.objects) == before
        writes += 1
        left = writes
    assert writes > 20  # so many attempts failed
    assert (result.completed, result.failed) == (LINES // 2, LINES // 2)
    assert await batch.ids("output") == names(range(0, LINES, 2))
    assert await batch.ids("error") == names(range(1, LINES, 2))


async def test_a_cancelled_finalization_stops_its_thread_before_it_closes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_on_disk(monkeypatch)
    sorting, cancelled, in_order = threading.Event(), threading.Event(), RecordRows.in_order
    open_at_the_end: list[int] = []

    def sorted_slowly(rows: RecordRows) -> Iterable[bytes]:
        sorting.set()
        cancelled.wait(30)
        try:
            return in_order(rows)
        finally:
            open_at_the_end.append(len(open_below(tmp_path)))

    monkeypatch.setattr(RecordRows, "in_order", sorted_slowly)
    batch = await a_half_settled_batch(tmp_path)
    running = asyncio.ensure_future(batch.finalize())
    await asyncio.to_thread(sorting.wait, 30)
    batch.env.cancel()
    asyncio.get_running_loop().call_soon(cancelled.set)  # after the activity has received the cancel
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(open_at_the_end) == 1
    assert open_at_the_end[0] > 0
    assert open_below(tmp_path) == os.listdir(tmp_path) == []
