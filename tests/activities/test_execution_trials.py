"""Trials of a backend that takes nothing: why a batch waits is told also while one of them takes long."""

import asyncio

import httpx
import pytest

from batchwright.contracts.errors import Failure
from tests.activities.execution_house import House, line_of, ok, plan_slice, request, status

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
