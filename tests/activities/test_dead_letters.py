"""Lines that are given up: noted by their slice, listed by finalization."""

import httpx
import pytest

from activities.slices.sink import SegmentNames, SegmentSink
from activities.slices.work import read_stored
from batchwright.contracts.errors import LineCode
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.openai import BatchStatus
from batchwright.database.dead_letters_base import Buried
from batchwright.rules.dead_letters import LastAttempt
from batchwright.rules.ids import request_id
from batchwright.rules.segments import Kind, Record, read_records
from batchwright.settings import load
from tests.activities.execution_house import FOLDER, MODEL, House, line_of, ok, plan_slice, request, status
from tests.activities.settled_batch import BATCH_ID, TENANT, SettledBatch

LINES = 6
POISON = "3"


def poisoned(answer: httpx.Response) -> House:
    """One line of six always gets this answer."""
    return House(lambda content: answer if content == POISON else ok(content))


async def finals(house: House) -> list[LastAttempt]:
    records = await house.records()
    return [LastAttempt.model_validate_json(record.payload) for record in records if record.final]


async def test_a_line_that_used_up_its_attempts_is_noted_with_its_last_answer() -> None:
    house = poisoned(status(500))
    house.hurry()
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(LINES)])
    assert await house.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    [last] = await finals(house)
    assert last == LastAttempt(
        count=5, failed_at=last.failed_at, custom_id="c-3", model=MODEL, status=500, error="no"
    )
    assert [record.offset for record in await house.records() if record.final] == [offsets[3]]
    assert house.counted("batchwright_dead_letters_total", model=MODEL, code="http_error") == 1


async def test_a_line_that_never_got_an_answer_is_noted_with_its_code() -> None:
    house = poisoned(httpx.Response(200, content=b"<html>"))
    house.hurry()
    await plan_slice(house.storage, [line_of(n) for n in range(LINES)])
    await house.run(request())
    [last] = await finals(house)
    assert (last.status, last.code, last.count) == (0, "invalid_response", 5)


@pytest.mark.parametrize("code", [400, 404, 422])
async def test_a_line_that_is_refused_at_once_is_no_dead_letter(code: int) -> None:
    house = poisoned(status(code))
    house.hurry()
    await plan_slice(house.storage, [line_of(n) for n in range(LINES)])
    assert await house.run(request()) == SliceResult(finished=True, completed=LINES - 1, failed=1)
    assert await finals(house) == []


async def test_a_line_that_no_backend_took_for_as_long_as_it_may_wait_is_one() -> None:
    house = House(lambda content: status(503), give_up_after_seconds=0.001)
    house.hurry()
    await plan_slice(house.storage, [line_of(0)])
    while (result := await house.turn(request())) is None:
        house.next_attempt()
    assert result.failed == 1
    [last] = await finals(house)
    assert (last.status, last.count) == (503, 0)


async def compacted(*segments: list[Record]) -> list[Record]:
    """What is left of these segments, each of a turn, when the slice has made one of them."""
    house = House(ok)
    for number, records in enumerate(segments):
        await house.store(*records, name=f"0000-000001-aa-0000{number}")
    sink = SegmentSink(house.storage, house.tools.budget, house.metrics, SegmentNames(FOLDER, 0, 2))
    sink.start_with(await read_stored(house.storage, FOLDER))
    await sink.compact(2, lambda: True)
    [name] = await house.segment_names()
    return list(read_records(await house.storage.get(name)))


def final(offset: int, error: str = "") -> Record:
    last = LastAttempt(count=5, failed_at=1.0, error=error)
    return Record(Kind.ATTEMPT, offset, last.model_dump_json().encode(), final=True)


def failed(offset: int) -> Record:
    return Record(Kind.SETTLED, offset, b"failed")


async def test_compaction_keeps_the_last_attempts_of_lines_that_failed() -> None:
    done = Record(Kind.SETTLED, 20, b"done", success=True)
    before = Record(Kind.ATTEMPT, 10, b'{"count": 4}')
    found = await compacted([before], [final(10), failed(10), final(20), failed(20)], [done])
    assert sorted(found) == sorted([failed(10), done, final(10)])


async def listed(batch: SettledBatch) -> list[Buried]:
    rows, more = await batch.tables.dead_letters.page(tenant=TENANT, batch_id=None, limit=100, after=None)
    assert not more
    return sorted(rows, key=lambda row: row.letter.offset)


def given_up(batch: SettledBatch, n: int, error: str = "no") -> list[Record]:
    offset = batch.lines[n].offset
    return [final(offset, error), batch.failure(n, LineCode.REQUEST_TIMEOUT)]


async def test_the_batch_ends_with_a_row_for_each_line_that_was_given_up() -> None:
    batch = SettledBatch(lines=4)
    await batch.prepare()
    await batch.put([*given_up(batch, 3, "late"), *given_up(batch, 1, "early"), batch.success(0)])
    await batch.put([batch.failure(2)], sequence=1)
    await batch.finalize()
    found = await listed(batch)
    assert [(row.batch_id, row.letter.message) for row in found] == [(BATCH_ID, "early"), (BATCH_ID, "late")]
    errors = await batch.written("error")
    assert [row.letter.id for row in found] == [errors[0].id, errors[2].id]
    assert found[0].letter.id == request_id(BATCH_ID, batch.lines[1].offset)


async def test_a_line_that_another_attempt_had_an_answer_for_is_none() -> None:
    batch = SettledBatch(lines=2)
    await batch.prepare()
    await batch.put([*given_up(batch, 0), *given_up(batch, 1)])
    await batch.put([batch.success(0)], sequence=1)
    await batch.finalize()
    assert [row.letter.offset for row in await listed(batch)] == [batch.lines[1].offset]


async def test_finalizing_twice_lists_a_line_once() -> None:
    batch = SettledBatch(lines=1)
    await batch.prepare()
    await batch.put(given_up(batch, 0))
    assert await batch.finalize() == await batch.finalize()
    assert len(await listed(batch)) == 1


async def test_what_its_batch_did_not_settle_is_none() -> None:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    await batch.put([Record(Kind.ATTEMPT, batch.lines[0].offset, b'{"count": 4}')])
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert await listed(batch) == []


async def test_of_a_batch_only_so_many_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.activities.settled_batch.load", lambda: load(max_dead_letters=2))
    batch = SettledBatch(lines=5)
    await batch.prepare()
    await batch.put([record for n in (4, 2, 0, 1, 3) for record in given_up(batch, n)])
    result = await batch.finalize()
    assert result.failed == 5
    assert [row.letter.offset for row in await listed(batch)] == [
        batch.lines[0].offset,
        batch.lines[1].offset,
    ]
