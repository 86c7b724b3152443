"""A slice continues even if its heartbeats or its result writer fail with an unexpected error."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from batchwright.activities.execution.slice_state.lease import Heartbeat, HeartbeatReply
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer
from batchwright.contracts.temporal_payloads.execution import SliceResult
from tests.activities.execution.fixture import ExecutionFixture, eventually, line_of, ok, plan_slice, request


async def test_heartbeats_that_fail_unexpectedly_are_sent_again() -> None:
    answer = asyncio.Event()
    execution = ExecutionFixture(ok)

    async def slow(sent: httpx.Request) -> httpx.Response:
        await answer.wait()
        return ok("a")

    execution.answer = slow
    beats: list[SliceResult] = []

    def breaking() -> Heartbeat:
        async def beat(details: SliceResult) -> HeartbeatReply:
            beats.append(details)
            if len(beats) == 1:
                raise ValueError("an answer that no code expects")
            answer.set()
            return HeartbeatReply.OK

        return beat

    execution.context.heartbeat = breaking
    await plan_slice(execution.storage, [line_of(1)])
    result = await execution.run(request())
    assert (result.finished, result.completed, len(beats) > 1) == (True, 1, True)
    assert execution.counted("batchwright_background_task_failures_total", task="slice_heartbeats") == 1


async def test_results_are_written_after_their_writer_failed_unexpectedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execution = ExecutionFixture(ok)
    really, runs = SegmentBuffer.run, 0

    async def breaking(sink: SegmentBuffer, on_lost: Callable[[], None]) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("a bug in the writer")
        await really(sink, on_lost)

    monkeypatch.setattr(SegmentBuffer, "run", breaking)
    answer = asyncio.Event()

    async def slow(sent: httpx.Request) -> httpx.Response:
        await answer.wait()
        return ok("a")

    execution.answer = slow
    await plan_slice(execution.storage, [line_of(1)])
    running = execution.start(request())
    await eventually(lambda: runs == 2)
    answer.set()
    result = await running
    assert (result.finished, result.completed) == (True, 1)
    assert execution.counted("batchwright_background_task_failures_total", task="slice_results") == 1
