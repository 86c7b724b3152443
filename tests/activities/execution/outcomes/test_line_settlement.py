"""The outcome of a request changes the attempts and error of a line, and the circuit breaker of a backend."""

import json
import time

import httpx
import pytest
from msgspec.structs import replace

from batchwright.activities.execution.line_settlement import InFlightRequest, LineSettler, OutboundRequest
from batchwright.activities.execution.slice_state.line_queue import LineAttempt, SliceLine
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer, SegmentStore
from batchwright.contracts.errors import LineCode
from batchwright.inference.limits.concurrency_limiter import Permit, PermitRequest
from batchwright.inference.request_outcome import Outcome, from_exception
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import HOOK_FAILED, classify
from tests.activities.execution.fixture import (
    BATCH,
    FOLDER,
    MODEL,
    TENANT,
    ExecutionFixture,
    held_lease,
    ok,
    request,
)
from tests.fakes.routing import URLS, Clock, fail, plain, route_of

REFUSED, BUSY = Outcome(classify(503), 503), Outcome(retry_policy.BUSY, 503)
SAID = Outcome(classify(500), 500, b'{"error":{"message":"cannot draw a cat"}}')
REQUEST = OutboundRequest("r-1", "c-1", b"{}")


class OpenCircuit:
    """A slice with one line. The circuit breaker of its backend is open, so every request is a
    trial request.
    """

    def __init__(self) -> None:
        self.execution, self.clock = ExecutionFixture(ok), Clock()
        self.line = SliceLine(0, b"{}", REQUEST.request_id)
        self.route = route_of(self.clock, plain(URLS[:1]))
        self.lane = self.route.upstreams[0]
        fail(self.lane)
        context, slice_ = self.execution.context, request()
        segments = SegmentStore(self.execution.storage, FOLDER, 0, 1, held_lease())
        self.writer = SegmentBuffer(segments, context.budget, context.metrics)
        self.outcomes = LineSettler(context, slice_, self.writer, self.route, None)

    def probe(self) -> InFlightRequest:
        """Send the line as a trial request, which an open circuit breaker allows from time to time.

        Return the request.
        """
        self.clock.now += self.lane.circuit.wait_seconds()
        dispatch, permits = self.route.select(), list[Permit]()
        assert dispatch is not None
        permit_request = PermitRequest(
            MODEL, TENANT, weight=1, batch_id=BATCH, number=0, on_granted=permits.append
        )
        self.execution.context.permits.enqueue(permit_request)
        return InFlightRequest(self.line, REQUEST, permits[0], dispatch, line_bytes=0, held=0)

    def retry(self, outcome: Outcome) -> None:
        assert not self.outcomes.apply(self.probe(), outcome)

    async def stored(self) -> list[LineAttempt]:
        await self.writer.flush()
        return [
            LineAttempt.model_validate(json.loads(record.payload))
            for record in await self.execution.records()
        ]


async def test_the_last_error_text_of_a_line_survives_refusals_without_a_body_and_is_stored_once() -> None:
    fixture = OpenCircuit()
    for outcome in (SAID, REFUSED, SAID):
        fixture.retry(outcome)
    assert fixture.line.attempt.backend_error == "cannot draw a cat"
    assert [attempt.backend_error for attempt in await fixture.stored()] == ["cannot draw a cat"]


async def test_a_line_without_an_answer_still_has_none_after_a_refusal() -> None:
    fixture = OpenCircuit()
    fixture.retry(from_exception(httpx.ReadError("reset"), seconds=1, max_bytes=1))
    fixture.retry(REFUSED)
    assert fixture.line.attempt.no_response


async def test_a_line_refused_by_a_busy_backend_is_due_at_once_unless_the_backend_names_a_wait() -> None:
    fixture = OpenCircuit()
    fixture.retry(BUSY)
    assert fixture.line.attempt.not_before <= time.time()
    fixture.retry(replace(BUSY, retry_after=100))
    assert fixture.line.attempt.not_before > time.time()
    assert fixture.line.attempt.count == 0


async def test_a_failed_trial_at_a_healthy_backend_uses_an_attempt_and_the_next_one_waits() -> None:
    fixture = OpenCircuit()
    fixture.line.is_backend_alive = True
    fixture.retry(SAID)
    assert fixture.line.attempt.count == 1
    assert fixture.lane.circuit.wait_seconds() == 1


@pytest.mark.parametrize(
    ("outcome", "in_doubt"),
    [(SAID, True), (REFUSED, False), (Outcome(HOOK_FAILED, code=LineCode.HOOK_FAILED), False)],
    ids=["error", "refusal", "hook"],
)
async def test_only_errors_that_the_line_may_have_caused_need_a_probe(
    outcome: Outcome, in_doubt: bool
) -> None:
    fixture = OpenCircuit()
    attribution, dispatch = fixture.outcomes.attribution, fixture.probe().dispatch
    assert attribution.needs_probe(fixture.line, outcome, dispatch) is in_doubt
