"""Segments of a slice that are merged.

A merge may write an older record about a line into a newer segment. The newest record about the line still
counts.
"""

from secrets import token_bytes

from batchwright.activities.execution.slice_state.line_queue import LineAttempt, SubmittedJob
from batchwright.activities.execution.slice_state.resumed_slice import StoredResults, read_stored_results
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer, SegmentStore
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.fixture import FOLDER, held_lease
from tests.fakes.storage import MemoryStorage

LINE = 7
WAITING = LineAttempt(no_response=True)
RUNNING = LineAttempt(
    no_response=True, job=SubmittedJob(id="job-1", upstream="http://backend alpha", since=1)
)
MIB = 1024 * 1024
TOO_LARGE_TO_MERGE = 9 * MIB


def record(attempt: LineAttempt) -> SegmentRecord:
    kind = RecordKind.ATTEMPT if attempt.job is None else RecordKind.SUBMITTED
    return SegmentRecord(kind, LINE, attempt.model_dump_json().encode())


def result(offset: int, size: int = 2) -> SegmentRecord:
    return SegmentRecord(RecordKind.SETTLED, offset, token_bytes(size), True)


class Slice:
    """Segments of one slice, which several attempts write, and merge into fewer segments."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._turns = 0

    async def turn(self, *segments: list[SegmentRecord], merge: int) -> None:
        """Run an attempt of the slice: write `segments`, then merge the small ones if there are at least
        `merge`.
        """
        self._turns += 1
        store = SegmentStore(self._storage, FOLDER, 0, self._turns, held_lease())
        buffer = SegmentBuffer(store, MemoryBudget(2**30), Metrics())
        buffer.restore(await self.read())
        for segment in segments:
            for each in segment:
                buffer.add(each)
            await buffer.flush()
        await buffer.compact(merge, lambda: True)

    async def read(self) -> StoredResults:
        return await read_stored_results(self._storage, FOLDER)


async def test_a_merge_of_older_records_does_not_hide_a_running_job() -> None:
    slice_ = Slice()
    with_job = [record(RUNNING), result(1, TOO_LARGE_TO_MERGE)]
    await slice_.turn([record(WAITING)], [result(2)], with_job, merge=2)
    assert (await slice_.read()).attempts[LINE] == RUNNING


async def test_a_second_merge_keeps_the_newest_record_of_each_line() -> None:
    slice_ = Slice()
    stored_twice = result(2, 3 * MIB)  # the merge makes room for the segment with the newest record
    with_job = [record(RUNNING), result(1, 7 * MIB // 2)]
    await slice_.turn([record(WAITING)], [stored_twice], [stored_twice], with_job, merge=2)
    await slice_.turn(merge=2)
    stored = await slice_.read()
    assert (len(stored.segments), stored.attempts[LINE]) == (1, RUNNING)


async def test_a_merge_keeps_the_number_of_crashes_of_a_line() -> None:
    slice_ = Slice()
    crashed = LineAttempt(crashes=2)
    large = [record(crashed), result(1, TOO_LARGE_TO_MERGE)]
    await slice_.turn([record(LineAttempt(crashes=1))], [result(2)], large, merge=2)
    assert (await slice_.read()).attempts[LINE].crashes == 2
