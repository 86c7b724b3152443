"""One run of a slice on a worker: what is sent, stored and counted."""

import asyncio
import json

import httpx
import pytest

from batchwright.activities.execution.slice_state.segment_buffer import FLUSH_RESULTS
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.contracts.terms import Usage
from batchwright.rules import ids
from batchwright.rules.results.output_lines import result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution.fixture import (
    BATCH,
    FOLDER,
    MODEL,
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def test_every_line_is_sent_once_and_settled() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(50)])
    assert await execution.run(request()) == SliceResult(finished=True, completed=50)
    assert sorted(execution.sent, key=int) == [str(n) for n in range(50)]
    settled = await execution.settled()
    assert sorted(settled) == offsets
    for number, offset in enumerate(offsets):
        line = json.loads(settled[offset].payload)
        assert (line["id"], line["custom_id"]) == (ids.request_id(BATCH, offset), f"c-{number}")
        assert line["response"]["body"]["echo"] == str(number)
        assert line["response"]["request_id"] == "r-1"


async def test_a_running_slice_is_registered_by_batch_and_model_until_it_ends() -> None:
    seen: list[dict[tuple[str, str], int]] = []

    def reply(content: str) -> httpx.Response:
        seen.append(dict(execution.execution.running))
        return ok(content)

    execution = ExecutionFixture(reply)
    await plan_slice(execution.storage, [line_of(0)])
    await execution.run(request())
    assert (seen, dict(execution.execution.running)) == ([{(BATCH, MODEL): 1}], {})


async def test_bodies_are_sent_byte_for_byte_with_the_request_id_of_the_line() -> None:
    execution = ExecutionFixture(ok, backend_api_key="secret")
    odd = b'{"model":"m" , "big":12345678901234567890,"messages":[{"content":"\\u00e9\\/7"}]}'
    await plan_slice(execution.storage, [b'{"body":%s,"custom_id":"x"}' % odd])
    await execution.run(request())
    (sent,) = execution.requests
    assert sent.content == odd
    assert str(sent.url) == "http://backend/v1/chat/completions"
    assert sent.headers["authorization"] == "Bearer secret"
    assert sent.headers["idempotency-key"] == sent.headers["x-request-id"] == ids.request_id(BATCH, 0)


async def test_settled_lines_are_not_sent_again_and_are_counted() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(3)])
    usage = Usage(input_tokens=10, output_tokens=1)
    done = SegmentRecord(RecordKind.SETTLED, offsets[0], b"{}", True, usage)
    await execution.store(done, SegmentRecord(RecordKind.SETTLED, offsets[2], b"{}"))
    assert await execution.run(request()) == SliceResult(finished=True, completed=2, failed=1)
    assert execution.sent == ["1"]


async def test_a_slice_that_was_already_finished_sends_nothing() -> None:
    execution = ExecutionFixture(ok)
    (offset,) = await plan_slice(execution.storage, [line_of(0)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}", True))
    assert await execution.run(request()) == SliceResult(finished=True, completed=1)
    assert execution.sent == []


async def test_the_segments_of_a_finished_slice_become_one() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(3)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offsets[0], b"{}", True))
    await execution.store(
        SegmentRecord(RecordKind.ATTEMPT, offsets[1], b'{"count":2}'), name="0000-000001-aa-00002"
    )
    await execution.run(request())
    assert len(await execution.segment_names()) == 1
    assert sorted(await execution.settled()) == offsets
    assert {record.kind for record in await execution.records()} == {RecordKind.SETTLED}


async def test_full_segments_of_a_finished_slice_stay_as_they_are() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(3 * FLUSH_RESULTS + 1)])
    for number in range(3):
        full = offsets[number * FLUSH_RESULTS : (number + 1) * FLUSH_RESULTS]
        settled = [SegmentRecord(RecordKind.SETTLED, offset, b"{}", True) for offset in full]
        await execution.store(*settled, name=f"0000-000001-aa-0000{number}")
    before = await execution.segment_names()
    assert (await execution.run(request())).finished
    assert len(await execution.segment_names()) == 4
    assert set(before) < set(await execution.segment_names())
    assert len(await execution.settled()) == len(offsets)


async def test_progress_is_reported_in_absolute_numbers() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.run(request(generation=2))
    await execution.context.progress.send()
    ((row,),) = execution.progress.upserts
    assert (row.number, row.generation, row.attempt) == (0, 2, 1)
    assert (row.completed, row.failed, row.usage) == (2, 0, Usage(input_tokens=6, output_tokens=4))


async def test_failed_lines_are_reported_by_code_with_those_of_earlier_turns() -> None:
    answers = {"1": status(400), "2": status(404)}
    execution = ExecutionFixture(lambda content: answers.get(content) or ok(content))
    offsets = await plan_slice(execution.storage, [line_of(n) for n in range(4)])
    failed = result_line("id", "c-3", status_code=400, backend_request_id="", body=b'"earlier"')
    await execution.store(SegmentRecord(RecordKind.SETTLED, offsets[3], failed))
    await execution.run(request())
    await execution.context.progress.send()
    ((row,),) = execution.progress.upserts
    assert [(error.code, error.count, error.example.custom_id) for error in row.errors] == [
        ("http_400", 2, "c-3"),
        ("http_404", 1, "c-2"),
    ]
    assert row.errors[0].example.message == "earlier"


async def test_a_line_that_failed_in_one_attempt_and_succeeded_in_another_is_no_error() -> None:
    execution = ExecutionFixture(ok)
    offset, _ = await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}"))
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}", True))
    await execution.run(request())
    await execution.context.progress.send()
    ((row,),) = execution.progress.upserts
    assert (row.failed, row.errors) == (0, [])


async def test_progress_that_could_not_be_written_is_written_later() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    await execution.run(request())
    execution.progress.is_unavailable = True
    await execution.context.progress.send()
    execution.progress.is_unavailable = False
    await execution.context.progress.send()
    await execution.context.progress.send()
    assert len(execution.progress.upserts) == 1


async def test_counts_are_not_reported_before_earlier_results_are_read() -> None:
    execution = ExecutionFixture(ok)
    execution.storage.failing = StorageUnavailable("away")
    error = await execution.failure(request())
    await execution.context.progress.send()
    assert error.type == Failure.STORAGE_UNAVAILABLE
    assert execution.progress.upserts == []


async def test_usage_and_errors_are_counted_per_model() -> None:
    execution = ExecutionFixture(lambda content: ok(content) if content == "0" else status(400))
    await plan_slice(execution.storage, [line_of(0), line_of(1)])
    assert await execution.run(request()) == SliceResult(finished=True, completed=1, failed=1)
    assert execution.counted("batchwright_batch_request_prompt_tokens_total", model=MODEL) == 3
    assert execution.counted("batchwright_batch_request_generation_tokens_total", model=MODEL) == 2
    assert execution.counted("batchwright_request_errors_by_model_total", model=MODEL) == 1
    name, lane = "batchwright_request_tokens", {"model": MODEL, "backend": "http://backend"}
    assert execution.counted(f"{name}_sum", **lane, type="prompt") == 3
    assert execution.counted(f"{name}_sum", **lane, type="completion") == 2
    assert execution.counted(f"{name}_count", **lane, type="prompt") == 1


async def test_requests_in_flight_are_counted_until_they_end() -> None:
    execution = ExecutionFixture(ok)
    release = asyncio.Event()

    async def slow(sent: httpx.Request) -> httpx.Response:
        await release.wait()
        return ok("x")

    execution.answer = slow
    await plan_slice(execution.storage, [line_of(n) for n in range(3)])
    running = execution.start(request())
    await eventually(lambda: len(execution.sent) == 3)
    assert execution.counted("batchwright_processor_inflight_requests") == 3
    assert execution.counted("batchwright_model_inflight_requests", model=MODEL) == 3
    release.set()
    await running
    assert execution.counted("batchwright_processor_inflight_requests") == 0
    assert execution.context.budget.held == 0


async def test_a_model_never_has_more_in_flight_than_its_limit() -> None:
    execution = ExecutionFixture(ok, model_in_flight=4)
    most = 0

    async def watched(sent: httpx.Request) -> httpx.Response:
        nonlocal most
        most = max(most, execution.context.permits.used_by(MODEL))
        await asyncio.sleep(0)
        return ok("x")

    execution.answer = watched
    await plan_slice(execution.storage, [line_of(n) for n in range(40)])
    await execution.run(request())
    assert most == 4


async def test_a_plan_that_disagrees_with_its_shard_is_never_retried() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.storage.put(object_keys.shard("p", MODEL), b"{}\n")
    error = await execution.failure(request())
    assert (error.type, error.non_retryable) == (Failure.PLAN_DAMAGED, True)


async def test_an_unreadable_line_does_not_lose_the_results_of_the_others() -> None:
    execution = ExecutionFixture(ok)
    offsets = await plan_slice(execution.storage, [line_of(0), b"no json"])
    error = await execution.failure(request())
    assert (error.type, error.non_retryable) == (Failure.PLAN_DAMAGED, True)
    assert set(await execution.settled()) <= {offsets[0]}
    assert execution.context.permits.used == 0


async def test_a_damaged_segment_is_never_retried() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    await execution.storage.put(FOLDER + "0000-000001-aa-00001", b"rubbish")
    error = await execution.failure(request())
    assert (error.type, error.non_retryable) == (Failure.RESULTS_DAMAGED, True)
    assert execution.sent == []


async def test_a_segment_deleted_while_it_is_read_is_not_damage() -> None:
    execution = ExecutionFixture(ok)
    (offset,) = await plan_slice(execution.storage, [line_of(0)])
    await execution.store(SegmentRecord(RecordKind.SETTLED, offset, b"{}", True))
    get, gone = execution.storage.get, FOLDER + "0000-000001-aa-00001"

    async def compacted_meanwhile(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == gone and gone in execution.storage.objects:
            execution.storage.objects[FOLDER + "0000-000001-aa-00002"] = execution.storage.objects.pop(gone)
        return await get(key, start, length)

    execution.storage.get = compacted_meanwhile
    assert await execution.run(request()) == SliceResult(finished=True, completed=1)
    assert execution.sent == []


async def test_results_wait_while_storage_is_unavailable() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    put, failures = execution.storage.put, 2

    async def put_later(key: str, data: bytes) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable("away")
        await put(key, data)

    execution.storage.put = put_later
    assert await execution.run(request()) == SliceResult(finished=True, completed=1)
    assert execution.sent == ["0"]


async def test_a_full_memory_budget_delays_reading_the_shard() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    room = execution.context.budget.reserve(64 * 1024 * 1024)
    running = execution.start(request())
    await eventually(lambda: bool(execution.server.heartbeats))
    assert execution.sent == []
    execution.context.budget.release(room)
    assert (await running).finished
