"""Trial requests to a backend whose circuit breaker is open.

The reason why the batch waits is published even while a trial request takes a long time.
"""

import asyncio

import httpx
import pytest

from batchwright.contracts.errors import Failure
from tests.activities.execution.fixture import (
    MODEL,
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.background_tasks import reasons_published

pytestmark = pytest.mark.usefixtures("skipped_waits")
LONG = 45.0  # as LiteLLM's proxy tries to reach an engine that is gone
REASON = "the backend accepts no requests now: it answered 503"


class UnavailableBackend:
    """A fixture with an unavailable backend.

    Its first response, a 503, comes immediately. All later responses take a long time until the test sets
    `is_back`.
    """

    def __init__(self) -> None:
        self.execution = ExecutionFixture(ok, circuit_failures=1, model_in_flight=1)
        self.execution.answer = self._answer
        self.is_back = False
        self.execution.occupy_all_places()

    async def reasons(self) -> list[str]:
        await reasons_published()
        return [reported.reason for _, reported in self.execution.reported_reasons]

    async def _answer(self, http_request: httpx.Request) -> httpx.Response:
        if self.is_back:
            return ok("")
        if len(self.execution.sent) > 1:
            await asyncio.sleep(LONG)
        return status(503)


async def test_a_turn_that_ends_during_a_trial_request_keeps_the_waiting_reason() -> None:
    backend = UnavailableBackend()
    await plan_slice(backend.execution.storage, [line_of(n) for n in range(3)])
    assert (await backend.execution.failure(request(slice_seconds=30))).type == Failure.TURN_OVER
    assert await backend.reasons() == [REASON]


async def test_the_waiting_reason_is_cleared_when_the_backend_answers_again() -> None:
    backend = UnavailableBackend()
    await plan_slice(backend.execution.storage, [line_of(n) for n in range(3)])
    await backend.execution.failure(request(slice_seconds=30))
    backend.is_back = True
    backend.execution.next_attempt()
    assert (await backend.execution.run(request())).completed == 3
    assert await backend.reasons() == [REASON, ""]


async def test_the_circuit_gauge_is_1_while_the_circuit_is_open() -> None:
    backend = UnavailableBackend()
    gauge = "batchwright_model_circuit_open"
    await plan_slice(backend.execution.storage, [line_of(n) for n in range(3)])
    await backend.execution.failure(request(slice_seconds=30))
    assert backend.execution.counted(gauge, model=MODEL) == 1
    backend.is_back = True
    backend.execution.next_attempt()
    await backend.execution.run(request())
    assert backend.execution.metrics.registry.get_sample_value(gauge, {"model": MODEL}) == 0


async def test_an_unanswered_trial_request_does_not_block_other_slices_from_a_recovered_backend() -> None:
    execution, answered = (
        ExecutionFixture(ok, circuit_failures=1, request_timeout_seconds=100_000),
        asyncio.Event(),
    )

    async def answer(http_request: httpx.Request) -> httpx.Response:
        if len(execution.sent) == 1:
            await answered.wait()
        return ok("")

    execution.answer, circuit = answer, execution.circuit(MODEL)
    circuit.record_failure(circuit.begin(), "503")
    await plan_slice(execution.storage, [line_of(n) for n in range(3)])
    hanging = execution.start(request())
    await eventually(lambda: bool(execution.sent))
    result = None
    for _ in range(40):
        if result is None:
            execution.next_attempt()
            result = await execution.turn(request(tenant="fresh", batch_id="batch_" + "1" * 32))
            await asyncio.sleep(5)
    assert result is not None
    assert (result.finished, result.completed, hanging.done()) == (True, 3, False)
    answered.set()
    await asyncio.gather(hanging, return_exceptions=True)
