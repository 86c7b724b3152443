"""Trials of a backend that takes nothing: why a batch waits is told also while one of them takes long."""

import asyncio

import httpx
import pytest

from batchwright.contracts.errors import Failure
from tests.activities.execution_house import (
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
LONG = 45.0  # as LiteLLM's proxy tries to reach an engine that is gone
REASON = "the backend takes nothing now: it answered 503"


class Away:
    """A house before a gateway: the first answer comes at once, each further one after a long time."""

    def __init__(self) -> None:
        self.house = House(ok, circuit_failures=1, model_in_flight=1)
        self.house.answer = self._answer
        self.is_back = False

    async def told(self) -> list[str]:
        await self.house.tools.waiting.settle()
        return [told.reason for _, told in self.house.told]

    async def _answer(self, asked: httpx.Request) -> httpx.Response:
        if self.is_back:
            return ok("")
        if len(self.house.sent) > 1:
            await asyncio.sleep(LONG)
        return status(503)


async def test_a_turn_that_ends_with_a_trial_under_way_leaves_the_reason_where_it_is() -> None:
    away = Away()
    await plan_slice(away.house.storage, [line_of(n) for n in range(3)])
    assert (await away.house.failure(request(slice_seconds=30))).type == Failure.TURN_OVER
    assert await away.told() == [REASON]


async def test_the_reason_is_taken_back_when_the_backend_answers_again() -> None:
    away = Away()
    await plan_slice(away.house.storage, [line_of(n) for n in range(3)])
    await away.house.failure(request(slice_seconds=30))
    away.is_back = True
    away.house.next_attempt()
    assert (await away.house.run(request())).completed == 3
    assert await away.told() == [REASON, ""]


async def test_a_trial_that_is_never_answered_keeps_nobody_else_from_a_backend_that_is_back() -> None:
    house, answered = House(ok, circuit_failures=1, request_timeout_seconds=100_000), asyncio.Event()

    async def answer(asked: httpx.Request) -> httpx.Response:
        if len(house.sent) == 1:
            await answered.wait()
        return ok("")

    house.answer, circuit = answer, house.circuit(MODEL)
    circuit.failed(circuit.begin(), "503")
    await plan_slice(house.storage, [line_of(n) for n in range(3)])
    hanging = house.start(request())
    await eventually(lambda: bool(house.sent))
    result = None
    for _ in range(40):
        if result is None:
            house.next_attempt()
            result = await house.turn(request(tenant="fresh", batch_id="batch_" + "1" * 32))
            await asyncio.sleep(5)
    assert result is not None
    assert (result.finished, result.completed, hanging.done()) == (True, 3, False)
    answered.set()
    await asyncio.gather(hanging, return_exceptions=True)
