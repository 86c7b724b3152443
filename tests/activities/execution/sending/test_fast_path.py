"""Requests for which no asyncio task is created have the same outcomes as all other requests."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.lease import HeartbeatReply
from batchwright.activities.execution.slice_stop_signal import StopReason, StopSignal
from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.inference.upstream import Upstream
from batchwright.rules.backends.body_rewriting import INLINE_REWRITE_BYTES
from batchwright.rules.results.segment_format import RecordKind
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    body_of,
    content_of,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")
LAST = "3"


class AtOnce(ExecutionFixture):
    """A worker with a slice of four lines, which it sends one after the other.

    The first line opens the connection. `LAST` is the content of the last line. Each request for this line
    gets the next item of `answers` (a status or an error). When all items are used, requests for it succeed.
    Requests for the other lines always succeed.
    """

    def __init__(self, answers: Iterable[int | type[httpx.TransportError]] = (), **settings: object) -> None:
        super().__init__(ok, model_in_flight=1, **settings)
        self._answers = list(answers)
        self.answer = self._next

    async def planned(self) -> None:
        await plan_slice(self.storage, [line_of(n) for n in range(4)])

    async def before(self) -> None:
        """Do nothing. It is called before the response to `LAST`, and tests override it."""

    async def _next(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == LAST:
            await self.before()
            if self._answers:
                answer = self._answers.pop(0)
                if isinstance(answer, int):
                    return status(answer)
                raise answer("gone")
        return ok(content_of(sent))

    @property
    def in_flight(self) -> tuple[int, int]:
        """Return the number of permits in use, and the number of the backend's requests in flight."""
        route = self.backends.router_for(MODEL)
        assert route is not None
        return self.context.permits.used, route.upstreams[0].outstanding


async def test_all_lines_except_the_first_take_the_fast_path() -> None:
    execution = AtOnce()
    await execution.planned()
    result = await execution.run(request())
    assert (result.finished, result.completed, execution.engine.begun) == (True, 4, 3)
    assert execution.in_flight == (0, 0)
    assert (
        execution.counted("batchwright_requests_total", model=MODEL, backend="http://backend", status="200")
        == 4
    )


@pytest.mark.parametrize("answer", [500, 503, httpx.ReadError, httpx.ConnectError])
async def test_a_failure_on_the_fast_path_is_retried(answer: int | type[httpx.TransportError]) -> None:
    execution = AtOnce([answer])
    await execution.planned()
    while (result := await execution.turn(request())) is None:
        execution.next_attempt()
    assert (result.completed, execution.sent.count(LAST)) == (4, 2)
    assert execution.in_flight == (0, 0)


async def test_a_line_error_on_the_fast_path_settles_the_line() -> None:
    execution = AtOnce([400])
    await execution.planned()
    result = await execution.run(request())
    assert (result.completed, result.failed, execution.sent.count(LAST)) == (3, 1, 1)


@pytest.mark.parametrize("word", [HeartbeatReply.CANCEL_REQUESTED, HeartbeatReply.LEASE_LOST])
async def test_a_request_in_flight_is_aborted_when_its_slice_ends(word: HeartbeatReply) -> None:
    class Ended(AtOnce):
        async def before(self) -> None:
            self.server.reply = word
            await asyncio.Event().wait()

    execution = Ended()
    await execution.planned()
    with contextlib.suppress(ApplicationError, asyncio.CancelledError):
        await execution.run(request(cancel_grace_seconds=1))
    assert execution.engine.begun == 3
    assert (execution.in_flight, execution.context.budget.held) == ((0, 0), 0)
    assert len(await execution.settled()) <= 3


async def test_an_answer_received_after_the_slice_was_lost_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another attempt runs the slice now. It sends the line again, and counts it."""
    ends, set_ = list[StopReason](), StopSignal.set

    def note(stop: StopSignal, end: StopReason) -> None:
        set_(stop, end)
        ends.append(end)

    class Lost(AtOnce):
        async def before(self) -> None:
            self.environment.cancel(cancellation_details=ActivityCancellationDetails(timed_out=True))
            while not ends:
                await asyncio.sleep(0)

    monkeypatch.setattr(StopSignal, "set", note)
    execution = Lost()
    await execution.planned()
    assert (await execution.failure(request())).type == Failure.OWNERSHIP_LOST
    assert ends == [StopReason.LEASE_LOST]
    assert (
        execution.counted("batchwright_requests_total", model=MODEL, backend="http://backend", status="200")
        == 4
    )
    assert execution.counted("batchwright_request_results_total", model=MODEL, result="success") == 3
    assert execution.in_flight == (0, 0)


async def test_every_record_of_the_fast_path_is_a_result() -> None:
    execution = AtOnce()
    await execution.planned()
    await execution.run(request())
    assert {record.kind for record in await execution.records()} == {RecordKind.SETTLED}


async def test_model_name_and_priority_of_large_bodies_are_rewritten_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rewritten: list[int] = []  # bytes of the bodies that a thread rewrites

    async def in_a_thread(
        rewrite: Callable[[Upstream, bytes], bytes], upstream: Upstream, body: bytes
    ) -> bytes:
        rewritten.append(len(body))  # a real thread's time is none of the loop's clock, which skips waits
        return rewrite(upstream, body)

    monkeypatch.setattr(asyncio, "to_thread", in_a_thread)
    there = BackendConfig(url="http://backend", model="there", priority=7)
    execution = AtOnce(config=ModelConfig(backends=[there]))
    large = body_of(1).replace(b'"model"', b'"user":"%b","model"' % (b"x" * INLINE_REWRITE_BYTES))
    lines = [line_of(0), b'{"custom_id":"large","body":%b}' % large, line_of(2)]
    await plan_slice(execution.storage, lines)
    assert await execution.run(request()) == SliceResult(finished=True, completed=3)
    assert execution.engine.begun == 1  # line 2
    sent = [json.loads(sent.content) for sent in execution.requests]
    assert [(body["model"], body["priority"]) for body in sent] == [("there", 7)] * 3
    assert rewritten == [len(large)]
