"""A slice's turn: what is asked, what is kept, what is counted."""

import asyncio
import json

import httpx
import pytest

from activities.slices.sink import FLUSH_RESULTS
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.contracts.openai import Usage
from batchwright.rules import ids, keys
from batchwright.rules.segments import Kind, Record
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution_house import (
    BATCH,
    FOLDER,
    MODEL,
    House,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def test_every_line_is_asked_once_and_settled() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(50)])
    assert await house.run(request()) == SliceResult(finished=True, completed=50)
    assert sorted(house.sent, key=int) == [str(n) for n in range(50)]
    settled = await house.settled()
    assert sorted(settled) == offsets
    for number, offset in enumerate(offsets):
        line = json.loads(settled[offset].payload)
        assert (line["id"], line["custom_id"]) == (ids.request_id(BATCH, offset), f"c-{number}")
        assert line["response"]["body"]["echo"] == str(number)
        assert line["response"]["request_id"] == "r-1"


async def test_a_slice_that_runs_is_known_by_its_batch_and_model_and_forgotten_when_it_ends() -> None:
    seen: list[dict[tuple[str, str], int]] = []

    def reply(content: str) -> httpx.Response:
        seen.append(dict(house.execution.running))
        return ok(content)

    house = House(reply)
    await plan_slice(house.storage, [line_of(0)])
    await house.run(request())
    assert (seen, dict(house.execution.running)) == ([{(BATCH, MODEL): 1}], {})


async def test_bodies_go_out_byte_for_byte_with_the_lines_own_id() -> None:
    house = House(ok, backend_api_key="secret")
    odd = b'{"model":"m" , "big":12345678901234567890,"messages":[{"content":"\\u00e9\\/7"}]}'
    await plan_slice(house.storage, [b'{"body":%s,"custom_id":"x"}' % odd])
    await house.run(request())
    (sent,) = house.requests
    assert sent.content == odd
    assert str(sent.url) == "http://backend/v1/chat/completions"
    assert sent.headers["authorization"] == "Bearer secret"
    assert sent.headers["idempotency-key"] == sent.headers["x-request-id"] == ids.request_id(BATCH, 0)


async def test_settled_lines_are_not_asked_again_and_are_counted() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(3)])
    usage = Usage(input_tokens=10, output_tokens=1)
    done = Record(Kind.SETTLED, offsets[0], b"{}", True, usage)
    await house.store(done, Record(Kind.SETTLED, offsets[2], b"{}"))
    assert await house.run(request()) == SliceResult(finished=True, completed=2, failed=1)
    assert house.sent == ["1"]


async def test_a_slice_that_was_done_before_sends_nothing() -> None:
    house = House(ok)
    (offset,) = await plan_slice(house.storage, [line_of(0)])
    await house.store(Record(Kind.SETTLED, offset, b"{}", True))
    assert await house.run(request()) == SliceResult(finished=True, completed=1)
    assert house.sent == []


async def test_the_segments_of_a_finished_slice_become_one() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(3)])
    await house.store(Record(Kind.SETTLED, offsets[0], b"{}", True))
    await house.store(Record(Kind.ATTEMPT, offsets[1], b'{"count":2}'), name="0000-000001-aa-00002")
    await house.run(request())
    assert len(await house.segment_names()) == 1
    assert sorted(await house.settled()) == offsets
    assert {record.kind for record in await house.records()} == {Kind.SETTLED}


async def test_full_segments_of_a_finished_slice_stay_as_they_are() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(3 * FLUSH_RESULTS + 1)])
    for number in range(3):
        full = offsets[number * FLUSH_RESULTS : (number + 1) * FLUSH_RESULTS]
        settled = [Record(Kind.SETTLED, offset, b"{}", True) for offset in full]
        await house.store(*settled, name=f"0000-000001-aa-0000{number}")
    before = await house.segment_names()
    assert (await house.run(request())).finished
    assert len(await house.segment_names()) == 4
    assert set(before) < set(await house.segment_names())
    assert len(await house.settled()) == len(offsets)


async def test_progress_is_told_in_absolute_numbers() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0), line_of(1)])
    await house.run(request(generation=2))
    await house.tools.progress.send()
    ((row,),) = house.progress.upserts
    assert (row.number, row.generation, row.attempt) == (0, 2, 1)
    assert (row.completed, row.failed, row.usage) == (2, 0, Usage(input_tokens=6, output_tokens=4))


async def test_progress_that_could_not_be_written_is_written_later() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0)])
    await house.run(request())
    house.progress.is_away = True
    await house.tools.progress.send()
    house.progress.is_away = False
    await house.tools.progress.send()
    await house.tools.progress.send()
    assert len(house.progress.upserts) == 1


async def test_counts_are_not_told_before_the_past_is_known() -> None:
    house = House(ok)
    house.storage.failing = StorageUnavailable("away")
    error = await house.failure(request())
    await house.tools.progress.send()
    assert error.type == Failure.STORAGE_UNAVAILABLE
    assert house.progress.upserts == []


async def test_usage_and_errors_are_counted_per_model() -> None:
    house = House(lambda content: ok(content) if content == "0" else status(400))
    await plan_slice(house.storage, [line_of(0), line_of(1)])
    assert await house.run(request()) == SliceResult(finished=True, completed=1, failed=1)
    assert house.counted("batchwright_batch_request_prompt_tokens_total", model=MODEL) == 3
    assert house.counted("batchwright_batch_request_generation_tokens_total", model=MODEL) == 2
    assert house.counted("batchwright_request_errors_by_model_total", model=MODEL) == 1


async def test_in_flight_is_shown_while_it_is_in_flight() -> None:
    house = House(ok)
    release = asyncio.Event()

    async def slow(sent: httpx.Request) -> httpx.Response:
        await release.wait()
        return ok("x")

    house.answer = slow
    await plan_slice(house.storage, [line_of(n) for n in range(3)])
    running = house.start(request())
    await eventually(lambda: len(house.sent) == 3)
    assert house.counted("batchwright_processor_inflight_requests") == 3
    assert house.counted("batchwright_model_inflight_requests", model=MODEL) == 3
    release.set()
    await running
    assert house.counted("batchwright_processor_inflight_requests") == 0
    assert house.tools.budget.held == 0


async def test_a_model_never_has_more_in_flight_than_its_limit() -> None:
    house = House(ok, model_in_flight=4)
    most = 0

    async def watched(sent: httpx.Request) -> httpx.Response:
        nonlocal most
        most = max(most, house.tools.permits.used_by(MODEL))
        await asyncio.sleep(0)
        return ok("x")

    house.answer = watched
    await plan_slice(house.storage, [line_of(n) for n in range(40)])
    await house.run(request())
    assert most == 4


async def test_a_plan_that_disagrees_with_its_shard_is_never_retried() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0), line_of(1)])
    await house.storage.put(keys.shard("p", MODEL), b"{}\n")
    error = await house.failure(request())
    assert (error.type, error.non_retryable) == (Failure.PLAN_DAMAGED, True)


async def test_a_line_that_cannot_be_read_keeps_what_the_others_settled() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(0), b"no json"])
    error = await house.failure(request())
    assert (error.type, error.non_retryable) == (Failure.PLAN_DAMAGED, True)
    assert set(await house.settled()) <= {offsets[0]}
    assert house.tools.permits.used == 0


async def test_a_damaged_segment_is_never_retried() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0)])
    await house.storage.put(FOLDER + "0000-000001-aa-00001", b"rubbish")
    error = await house.failure(request())
    assert (error.type, error.non_retryable) == (Failure.RESULTS_DAMAGED, True)
    assert house.sent == []


async def test_a_segment_that_went_while_it_was_read_is_no_damage() -> None:
    house = House(ok)
    (offset,) = await plan_slice(house.storage, [line_of(0)])
    await house.store(Record(Kind.SETTLED, offset, b"{}", True))
    get, gone = house.storage.get, FOLDER + "0000-000001-aa-00001"

    async def compacted_meanwhile(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == gone and gone in house.storage.objects:
            house.storage.objects[FOLDER + "0000-000001-aa-00002"] = house.storage.objects.pop(gone)
        return await get(key, start, length)

    house.storage.get = compacted_meanwhile
    assert await house.run(request()) == SliceResult(finished=True, completed=1)
    assert house.sent == []


async def test_results_wait_for_a_storage_that_is_away() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0)])
    put, failures = house.storage.put, 2

    async def put_later(key: str, data: bytes) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable("away")
        await put(key, data)

    house.storage.put = put_later
    assert await house.run(request()) == SliceResult(finished=True, completed=1)
    assert house.sent == ["0"]


async def test_a_full_byte_budget_holds_back_the_shard() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(0)])
    room = house.tools.budget.want_shard(64 * 1024 * 1024)
    running = house.start(request())
    await eventually(lambda: bool(house.server.heard))
    assert house.sent == []
    house.tools.budget.leave(room)
    assert (await running).finished
