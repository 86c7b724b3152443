"""Dead letters (lines that failed for good): slices record them, and finalization lists them."""

import httpx
import pytest

from batchwright.activities.execution.slice_state.resumed_slice import read_stored_results
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer, SegmentStore
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.contracts.terms import BatchStatus
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.rules.ids import request_id
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.execution.fixture import (
    FOLDER,
    MODEL,
    ExecutionFixture,
    held_lease,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, SettledBatch
from tests.segments import read_records

LINES = 6
POISON = "3"


def poisoned(answer: httpx.Response) -> ExecutionFixture:
    """Return a fixture with six lines. The backend always gives this response to one of them."""
    return ExecutionFixture(lambda content: answer if content == POISON else ok(content))


async def finals(execution: ExecutionFixture) -> list[FinalAttempt]:
    records = await execution.records()
    return [FinalAttempt.model_validate_json(record.payload) for record in records if record.final]


async def test_a_line_that_used_up_its_attempts_is_a_dead_letter_with_its_last_answer() -> None:
    execution = poisoned(status(500))
    execution.hurry()
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(LINES)])
    assert await execution.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    [last] = await finals(execution)
    assert last == FinalAttempt(
        count=5, failed_at=last.failed_at, custom_id="c-3", model=MODEL, status=500, error="no"
    )
    assert [record.offset for record in await execution.records() if record.final] == [offsets[3]]
    assert execution.counted("batchwright_dead_letters_total", model=MODEL, code="http_error") == 1


async def test_a_line_that_never_got_an_answer_is_a_dead_letter_with_its_code() -> None:
    execution = poisoned(httpx.Response(200, content=b"<html>"))
    execution.hurry()
    await plan_slice(execution.storage, [line_of(n) for n in range(LINES)])
    await execution.run(request())
    [last] = await finals(execution)
    assert (last.status, last.code, last.count) == (0, "invalid_response", 5)


@pytest.mark.parametrize("code", [400, 404, 422])
async def test_a_line_that_is_refused_at_once_is_not_a_dead_letter(code: int) -> None:
    execution = poisoned(status(code))
    execution.hurry()
    await plan_slice(execution.storage, [line_of(n) for n in range(LINES)])
    assert await execution.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert await finals(execution) == []


async def test_a_line_that_no_backend_accepted_in_time_is_a_dead_letter() -> None:
    execution = ExecutionFixture(lambda content: status(503), give_up_after_seconds=0.001)
    execution.hurry()
    await plan_slice(execution.storage, [line_of(0)])
    while (result := await execution.turn(request())) is None:
        execution.next_attempt()
    assert result.failed == 1
    [last] = await finals(execution)
    assert (last.status, last.count) == (503, 0)


async def compacted(*segments: list[SegmentRecord]) -> list[SegmentRecord]:
    """Store each list of records as one segment, compact the segments, and return the remaining records."""
    execution = ExecutionFixture(ok)
    for number, records in enumerate(segments):
        await execution.store(*records, name=f"0000-000001-aa-0000{number}")
    store = SegmentStore(execution.storage, FOLDER, 0, 2, held_lease())
    sink = SegmentBuffer(store, execution.context.budget, execution.metrics)
    sink.restore(await read_stored_results(execution.storage, FOLDER))
    await sink.compact(2, lambda: True)
    [name] = await execution.segment_names()
    return list(read_records(await execution.storage.get(name)))


def final(offset: int, error: str = "") -> SegmentRecord:
    last = FinalAttempt(count=5, failed_at=1.0, error=error)
    return SegmentRecord(RecordKind.ATTEMPT, offset, last.model_dump_json().encode(), final=True)


def failed(offset: int) -> SegmentRecord:
    return SegmentRecord(RecordKind.SETTLED, offset, b"failed")


async def test_compaction_keeps_the_last_attempts_of_lines_that_failed() -> None:
    done = SegmentRecord(RecordKind.SETTLED, 20, b"done", success=True)
    before = SegmentRecord(RecordKind.ATTEMPT, 10, b'{"count": 4}')
    found = await compacted([before], [final(10), failed(10), final(20), failed(20)], [done])
    assert sorted(found) == sorted([failed(10), done, final(10)])


async def listed(batch: SettledBatch) -> list[StoredDeadLetter]:
    rows, more = await batch.tables.dead_letters.page(tenant=TENANT, batch_id=None, limit=100, after=None)
    assert not more
    return sorted(rows, key=lambda row: row.dead_letter.offset)


def given_up(batch: SettledBatch, n: int, error: str = "no") -> list[SegmentRecord]:
    offset = batch.lines[n].offset
    return [final(offset, error), batch.failure(n, LineCode.REQUEST_TIMEOUT)]


async def test_the_batch_ends_with_a_row_for_each_line_that_was_given_up() -> None:
    batch = SettledBatch(lines=4)
    await batch.prepare()
    await batch.put([*given_up(batch, 3, "late"), *given_up(batch, 1, "early"), batch.success(0)])
    await batch.put([batch.failure(2)], sequence=1)
    await batch.finalize()
    found = await listed(batch)
    assert [(row.batch_id, row.dead_letter.message) for row in found] == [
        (BATCH_ID, "early"),
        (BATCH_ID, "late"),
    ]
    errors = await batch.written("error")
    assert [row.dead_letter.id for row in found] == [errors[0].id, errors[2].id]
    assert found[0].dead_letter.id == request_id(BATCH_ID, batch.lines[1].offset)


async def test_a_line_answered_in_another_attempt_is_not_a_dead_letter() -> None:
    batch = SettledBatch(lines=2)
    await batch.prepare()
    await batch.put([*given_up(batch, 0), *given_up(batch, 1)])
    await batch.put([batch.success(0)], sequence=1)
    await batch.finalize()
    assert [row.dead_letter.offset for row in await listed(batch)] == [batch.lines[1].offset]


async def test_finalizing_twice_lists_a_line_once() -> None:
    batch = SettledBatch(lines=1)
    await batch.prepare()
    await batch.put(given_up(batch, 0))
    assert await batch.finalize() == await batch.finalize()
    assert len(await listed(batch)) == 1


async def test_an_unsettled_line_is_not_a_dead_letter() -> None:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    await batch.put([SegmentRecord(RecordKind.ATTEMPT, batch.lines[0].offset, b'{"count": 4}')])
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert await listed(batch) == []


async def test_the_number_of_dead_letters_of_a_batch_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.activities.finalization.activity._MAX_DEAD_LETTERS", 2)
    batch = SettledBatch(lines=5)
    await batch.prepare()
    await batch.put([record for n in (4, 2, 0, 1, 3) for record in given_up(batch, n)])
    result = await batch.finalize()
    assert result.failed == 5
    assert [row.dead_letter.offset for row in await listed(batch)] == [
        batch.lines[0].offset,
        batch.lines[1].offset,
    ]
