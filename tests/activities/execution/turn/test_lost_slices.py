"""A worker stores no results of a slice that another worker has, whether it was frozen or is cut off."""

import asyncio
import time

import httpx
import pytest

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.activities.execution.slice_state.line_quarantine import TRACKED_BATCH_SIZE
from batchwright.contracts.errors import Failure
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.execution.fixture import (
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.activities.execution.turn.test_guards import slow

pytestmark = pytest.mark.usefixtures("skipped_waits")


async def test_a_slice_that_is_lost_while_its_results_are_stored_has_not_finished() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    put = execution.storage.put

    async def put_and_lose(key: str, data: bytes) -> None:
        execution.server.reply = HeartbeatReply.LEASE_LOST
        await asyncio.sleep(10)
        await put(key, data)

    execution.storage.put = put_and_lose
    assert (await execution.failure(request())).type == Failure.OWNERSHIP_LOST


def a_minute_later(clock: int) -> float:
    return time.monotonic() + 60


@pytest.mark.parametrize("lines", [1, 2], ids=["at the end", "in the meantime"])
async def test_a_worker_that_was_frozen_stores_no_results_of_a_slice_that_another_worker_has(
    monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """The other worker may already send these lines again, and a line with a stored result is never sent."""
    execution = ExecutionFixture(ok, model_in_flight=1)
    await plan_slice(execution.storage, [line_of(number) for number in range(lines)])

    async def freeze(http_request: httpx.Request) -> httpx.Response:
        monkeypatch.setattr(time, "clock_gettime", a_minute_later)
        execution.server.reply = HeartbeatReply.LEASE_LOST
        return ok(content_of(http_request))

    execution.answer = freeze
    assert (await execution.failure(request())).type == Failure.OWNERSHIP_LOST
    assert await execution.segment_names() == []


async def test_a_frozen_worker_that_records_its_next_lines_stores_no_results_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After two crashes, a worker records its next lines before it sends them, together with results."""
    execution = ExecutionFixture(ok, model_in_flight=1)
    await plan_slice(execution.storage, [line_of(number) for number in range(2 * TRACKED_BATCH_SIZE)])

    async def freeze(http_request: httpx.Request) -> httpx.Response:
        if content_of(http_request) == str(TRACKED_BATCH_SIZE - 1):
            monkeypatch.setattr(time, "clock_gettime", a_minute_later)
            execution.server.reply = HeartbeatReply.LEASE_LOST
        return ok(content_of(http_request))

    execution.answer = freeze
    execution.next_worker()
    execution.next_worker()
    assert (await execution.failure(request())).type == Failure.OWNERSHIP_LOST
    assert (await execution.settled(), len(execution.sent)) == ({}, TRACKED_BATCH_SIZE)


async def test_a_worker_that_only_reaches_storage_stores_no_results_of_a_slice_that_another_worker_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other worker has read the results by then, and would send a line that has one."""
    cut_off, other = ExecutionFixture(ok), ExecutionFixture(ok)
    other.storage = other.context.storage = cut_off.storage
    answers = {worker: asyncio.Event() for worker in (cut_off, other)}

    def answering_late(worker: ExecutionFixture) -> None:
        async def answer(http_request: httpx.Request) -> httpx.Response:
            await answers[worker].wait()
            return ok(content_of(http_request))

        worker.answer = answer

    for worker in answers:
        answering_late(worker)
    await plan_slice(cut_off.storage, [line_of(0)])
    cut_off.server.reply = HeartbeatReply.UNREACHABLE
    first = asyncio.create_task(cut_off.failure(request()))
    await eventually(lambda: cut_off.requests != [])
    monkeypatch.setattr(time, "clock_gettime", a_minute_later)
    other.next_worker()
    second = other.start(request())
    await eventually(lambda: other.requests != [])
    answers[cut_off].set()
    assert (await first).type == Failure.OWNERSHIP_LOST
    assert await other.settled() == {}
    answers[other].set()
    assert (await second).completed == 1
    assert len(await other.settled()) == 1


async def test_a_worker_that_only_reaches_storage_stops_when_it_finds_that_it_has_lost_the_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps no requests and no memory until Temporal is back, and reports no outage of storage."""
    execution, answer = ExecutionFixture(ok, model_in_flight=2), asyncio.Event()
    await plan_slice(execution.storage, [line_of(0), line_of(1)])

    async def answer_one(http_request: httpx.Request) -> httpx.Response:
        await (answer if content_of(http_request) == "0" else asyncio.Event()).wait()
        return ok("0")

    execution.answer = answer_one
    execution.server.reply = HeartbeatReply.UNREACHABLE
    running = asyncio.create_task(execution.failure(request()))
    await eventually(lambda: len(execution.requests) == 2)
    monkeypatch.setattr(time, "clock_gettime", a_minute_later)
    await execution.store(name="0000-000002-aa-00001")
    answer.set()
    async with asyncio.timeout(60):
        assert (await running).type == Failure.OWNERSHIP_LOST
    assert execution.reported_reasons == []


async def test_segments_from_before_an_operators_reset_are_not_those_of_another_worker() -> None:
    """After a reset, Temporal counts the attempts of the activity from 1 again."""
    execution = ExecutionFixture(ok, model_in_flight=1)
    offsets = await plan_slice(execution.storage, [line_of(0), line_of(1)])
    before = SegmentRecord(RecordKind.SETTLED, offsets[0], b"{}", success=True)
    await execution.store(before, name="0000-000007-aa-00001")

    async def answer(http_request: httpx.Request) -> httpx.Response:
        execution.server.reply = HeartbeatReply.UNREACHABLE
        await asyncio.sleep(40)
        return ok(content_of(http_request))

    execution.answer = answer
    assert (await execution.run(request(slice_seconds=600))).completed == 2


async def test_the_claim_of_a_slice_that_was_scheduled_again_is_no_reason_to_merge_segments() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0), line_of(1)])
    await execution.run(request(generation=1))
    assert len(await execution.segment_names()) == 2
    assert len(await execution.settled()) == 2


async def test_results_are_stored_after_the_lease_if_temporal_does_not_answer() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    await slow(execution, 40, lines=1)
    execution.server.reply = HeartbeatReply.UNREACHABLE
    assert (await execution.run(request(slice_seconds=600))).completed == 1
    assert len(await execution.segment_names()) == 1
