"""Checks that keep a slice from sending, storing or deleting when it may no longer do so."""

import asyncio
import time

import httpx
import pytest

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer, SegmentStore
from batchwright.activities.services.daily_budgets import UsedUpBudget
from batchwright.activities.services.send_authorization import LineAuthorizer
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.terms import Quota
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution.fixture import (
    FOLDER,
    ExecutionFixture,
    content_of,
    eventually,
    held_lease,
    in_seconds,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.activities.services.test_send_authorization import KEY, StatedPermissions
from tests.fakes.storage import MemoryStorage

pytestmark = pytest.mark.usefixtures("skipped_waits")

SEGMENTS = 10  # of a line each: enough to be compacted


def settled(offset: int) -> SegmentRecord:
    return SegmentRecord(RecordKind.SETTLED, offset, b"{}", True)


async def slow(execution: ExecutionFixture, seconds: float, lines: int) -> list[int]:
    """Plan a slice with `lines` lines whose responses take `seconds`. Return the offsets of the lines."""

    async def answer(http_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(seconds)
        return ok(content_of(http_request))

    execution.answer = answer
    return await plan_slice(execution.storage, [line_of(number) for number in range(lines)])


# Sending


async def test_a_slice_sends_nothing_until_a_heartbeat_is_acknowledged() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    execution.server.reply = HeartbeatReply.UNREACHABLE
    await slow(execution, 6, lines=10)
    running = execution.start(request(slice_seconds=600))
    await asyncio.sleep(100)
    sent_without = len(execution.sent)
    execution.server.reply = HeartbeatReply.OK
    assert (await running).completed == 10
    assert sent_without == 5  # at 0, 6, 12, 18 and 24 s; from 25 s on the slice may be another worker's


@pytest.mark.parametrize("why", ["stopped", "not acknowledged"])
async def test_a_refused_line_is_not_sent_to_another_backend_once_the_lease_has_run_out(why: str) -> None:
    two = ModelConfig(backends=[GatewayConfig(url="http://one"), GatewayConfig(url="http://two")])
    execution = ExecutionFixture(ok, config=two)
    await plan_slice(execution.storage, [line_of(0)])

    async def refuse_late(http_request: httpx.Request) -> httpx.Response:
        if why == "stopped":
            execution.environment.cancel()
        await asyncio.sleep(40)
        return status(503)

    execution.answer = refuse_late
    execution.server.reply = HeartbeatReply.UNREACHABLE if why == "not acknowledged" else HeartbeatReply.OK
    running = execution.start(request(cancel_grace_seconds=60, slice_seconds=30))
    await asyncio.sleep(50)
    assert len(execution.requests) == 1
    await asyncio.gather(running, return_exceptions=True)


async def test_no_line_is_sent_after_the_deadline() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    sent_at = list[float]()

    async def answer(http_request: httpx.Request) -> httpx.Response:
        sent_at.append(time.time())
        await asyncio.sleep(0.01)
        return ok(content_of(http_request))

    execution.answer = answer
    await plan_slice(execution.storage, [line_of(number) for number in range(200)])
    deadline = in_seconds(1.1)
    await execution.run(request(deadline=deadline))
    assert len(sent_at) > 50
    assert sent_at[-1] < deadline.timestamp()


class UnchangedPermissions(StatedPermissions):
    """Permissions that never change."""

    version: int | None = 1


@pytest.mark.parametrize("takes_away", ["key", "budget"])
async def test_a_line_with_a_running_job_does_not_let_other_lines_bypass_revoked_keys_and_budgets(
    takes_away: str,
) -> None:
    execution, said = ExecutionFixture(ok), UnchangedPermissions()
    if takes_away == "key":
        said.withdrawn = KEY
    else:
        used_up = UsedUpBudget(Quota.TOKENS_PER_DAY, "The budget is used up.")
        said.budget_exceeded = lambda tenant, key_id, currency: used_up
    caller = request().caller.model_copy(update={"key_id": KEY})
    authorizer = LineAuthorizer(said, execution.metrics, request(caller=caller))
    assert authorizer.denial_reason(has_job=True) == ""
    assert authorizer.denial_reason(has_job=False) != ""


class FailingPermissions(StatedPermissions):
    """Permissions that refuse the model while `allowed` is False. The second refusal raises ValueError
    instead.
    """

    looks = 0

    def may_use(self, tenant: str, model: str) -> bool:
        self.looks += not self.allowed
        if self.looks == 2:
            raise ValueError("unreadable")
        return super().may_use(tenant, model)


async def test_a_slice_ends_with_the_error_that_the_check_of_its_waiting_line_raises() -> None:
    execution, permissions = ExecutionFixture(ok, model_in_flight=1), FailingPermissions()
    execution.context.permissions = permissions
    await slow(execution, 60, lines=3)
    running = execution.start(request(slice_seconds=600))
    await eventually(lambda: len(execution.requests) == 1)
    permissions.allowed = False
    with pytest.raises(ValueError, match="unreadable"):
        await running


# Storage


def sink_of(storage: MemoryStorage, budget: MemoryBudget) -> SegmentBuffer:
    return SegmentBuffer(SegmentStore(storage, FOLDER, 0, 1, held_lease()), budget, Metrics())


async def test_abandoned_results_release_their_memory_and_are_not_stored() -> None:
    storage, budget = MemoryStorage(), MemoryBudget(1024)
    sink = sink_of(storage, budget)
    sink.add(settled(0))
    sink.discard()
    await sink.flush()
    assert (budget.response_bytes, storage.objects) == (0, {})


async def test_segments_of_a_lost_slice_are_not_deleted() -> None:
    storage = MemoryStorage()
    sink = sink_of(storage, MemoryBudget(1024))
    for offset in range(3):
        sink.add(settled(offset))
        await sink.flush()
    before = set(storage.objects)
    await sink.compact(2, lambda: False)
    assert before <= storage.objects.keys()


async def in_segments(execution: ExecutionFixture) -> "asyncio.Task[object]":
    """Start a slice in which all lines except the last one already have results, each in its own segment.

    Return the slice's task when the last line has been sent.
    """
    *done, _ = await slow(execution, 5, SEGMENTS + 1)
    for number, offset in enumerate(done):
        await execution.store(settled(offset), name=f"0000-000001-aa-{number:05d}")
    running = execution.start(request(cancel_grace_seconds=60, slice_seconds=600))
    await eventually(lambda: len(execution.sent) == 1)
    return running


async def test_segments_of_a_finished_slice_are_compacted() -> None:
    execution = ExecutionFixture(ok)
    await (await in_segments(execution))
    assert len(await execution.segment_names()) == 1


async def test_segments_of_a_slice_that_was_stopped_are_not_compacted() -> None:
    execution = ExecutionFixture(ok)
    running = await in_segments(execution)
    execution.environment.cancel()
    await running
    assert len(await execution.segment_names()) == SEGMENTS + 1


@pytest.mark.parametrize("lost", [False, True], ids=["stopped", "not acknowledged"])
async def test_a_slice_that_is_stopped_or_lost_while_it_compacts_deletes_nothing(lost: bool) -> None:
    execution = ExecutionFixture(ok)
    running = await in_segments(execution)
    put, puts = execution.storage.put, list[str]()

    async def put_and_end(key: str, data: bytes) -> None:
        puts.append(key)
        if len(puts) == 2:  # the first is the last line's
            if lost:
                execution.server.reply = HeartbeatReply.UNREACHABLE
                await asyncio.sleep(40)
            else:
                execution.environment.cancel()
                await asyncio.sleep(1)
        await put(key, data)

    execution.storage.put = put_and_end
    await running
    assert len(puts) == 2
    assert len(await execution.segment_names()) == SEGMENTS + 2


def without_storage(execution: ExecutionFixture, seconds: float) -> None:
    """Let all writes to storage fail for `seconds`."""
    put, until = execution.storage.put, time.monotonic() + seconds

    async def fail(key: str, data: bytes) -> None:
        if time.monotonic() < until:
            raise StorageUnavailable("unavailable")
        await put(key, data)

    execution.storage.put = fail


async def test_a_failing_storage_is_retried_no_longer_than_the_grace() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    without_storage(execution, seconds=60)
    error = await execution.failure(request(deadline=in_seconds(5), expiry_grace_seconds=1))
    assert error.type == Failure.STORAGE_UNAVAILABLE


async def test_a_failing_storage_is_not_retried_for_a_lost_slice() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    without_storage(execution, seconds=60)
    running = asyncio.create_task(execution.failure(request()))
    await eventually(lambda: execution.sent == ["0"])
    execution.server.reply = HeartbeatReply.LEASE_LOST
    assert (await running).type == Failure.OWNERSHIP_LOST
    assert await execution.segment_names() == []


async def test_a_slice_whose_results_cannot_be_stored_sends_no_more_until_they_can() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    await slow(execution, 1.5, lines=20)
    without_storage(execution, seconds=60)
    running = execution.start(request(slice_seconds=600))
    await asyncio.sleep(30)
    sent_without = len(execution.sent)
    assert (await running).completed == 20
    assert sent_without == 4  # at 0, 1.5, 3 and 4.5 s: the first answer is overdue for storage from 5.5 s on
