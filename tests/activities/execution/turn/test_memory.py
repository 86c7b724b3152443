"""A slice releases the memory of lines that need no further request, and all its memory when it ends."""

import asyncio
import gc
from collections.abc import Iterator

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.line_queue import LineQueue
from batchwright.contracts.errors import Failure
from tests.activities.execution.fixture import (
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)

SLOW = "0"


class SlowLine(ExecutionFixture):
    """A worker whose backend answers the first line only when `release` is set."""

    def __init__(self, **settings: object) -> None:
        super().__init__(ok, **settings)
        self.release = asyncio.Event()
        self.answer = self._wait_and_answer

    @property
    def memory_of_lines(self) -> int:
        return self.settings.byte_budget // 2

    async def _wait_and_answer(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == SLOW:
            await self.release.wait()
        return ok(content_of(sent))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def works() -> int:
    return sum(type(found) is LineQueue for found in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
async def test_the_memory_of_a_slice_is_released_when_it_ends() -> None:
    before = works()  # of slices that tests left hanging, as a worker does that dies
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(number) for number in range(5)])
    await execution.run(request())
    assert execution.sent
    assert works() == before


async def test_a_slice_that_waits_for_its_last_response_keeps_only_the_memory_of_that_line() -> None:
    execution = SlowLine()
    await plan_slice(execution.storage, [line_of(number) for number in range(10)])
    running = execution.start(request())
    await eventually(lambda: len(execution.sent) == 10)
    other = execution.context.budget.reserve(execution.memory_of_lines - len(line_of(0)))
    await eventually(lambda: other.granted)
    execution.release.set()
    assert (await running).completed == 10


async def test_a_slice_that_yields_to_one_that_waits_for_memory_gives_back_its_own_at_once() -> None:
    execution = SlowLine(model_in_flight=1)
    await plan_slice(execution.storage, [line_of(number) for number in range(10)])
    running = execution.start(request(slice_seconds=0))
    await eventually(lambda: execution.sent == [SLOW])
    other = execution.context.budget.reserve(execution.memory_of_lines)
    await eventually(lambda: other.granted)
    execution.release.set()
    (error,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(error, ApplicationError)
    assert (error.type, execution.sent) == (Failure.TURN_OVER, [SLOW])
    execution.context.budget.release(other)
    execution.next_attempt()
    assert (await execution.run(request())).completed == 10
    assert execution.context.budget.held == 0


async def test_a_line_is_sent_again_after_the_memory_of_the_others_was_given_back() -> None:
    execution = SlowLine()
    await plan_slice(execution.storage, [line_of(number) for number in range(10)])
    failed = False

    async def fail_once(sent: httpx.Request) -> httpx.Response:
        nonlocal failed
        if content_of(sent) == SLOW and not failed:
            await execution.release.wait()
            failed = True
            return httpx.Response(500)
        return ok(content_of(sent))

    execution.answer = fail_once
    running = execution.start(request())
    await eventually(lambda: len(execution.sent) == 10)
    other = execution.context.budget.reserve(execution.memory_of_lines - len(line_of(0)))
    await eventually(lambda: other.granted)
    execution.release.set()
    assert (await running).completed == 10
    assert execution.sent.count(SLOW) == 2
