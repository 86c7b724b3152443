"""Probes: requests with the content "ping" that test a backend after it failed some lines.

The tests check what the result of a probe decides, and when no probe is sent.
"""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from batchwright.contracts.errors import Failure
from tests.activities.execution.fixture import (
    ExecutionFixture,
    content_of,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")

PING = "ping"


async def planned_execution(
    lines: int, line: Callable[[str], httpx.Response], probe: httpx.Response, **settings: object
) -> ExecutionFixture:
    """Return a fixture with a planned slice. The backend's health check always succeeds.

    Args:
        lines: number of lines of the slice.
        line: returns the backend's response to a line with this content.
        probe: the backend's response to each probe (a request with the content "ping").
        settings: settings of the worker.
    """
    execution = ExecutionFixture(ok, **settings)

    async def answer(http_request: httpx.Request) -> httpx.Response:
        if http_request.method == "GET":
            return httpx.Response(200)
        content = content_of(http_request)
        return probe if content == PING else line(content)

    execution.answer = answer
    await plan_slice(execution.storage, [line_of(number) for number in range(lines)])
    return execution


async def test_an_invalid_response_fails_no_line_even_if_the_health_check_passes() -> None:
    execution = await planned_execution(
        20, lambda _: httpx.Response(200, text="<html>"), status(500), max_attempts=2, model_in_flight=20
    )
    error = await execution.failure(request())
    assert error.type == Failure.DEFERRED
    assert PING in execution.sent
    assert not await execution.settled()


async def test_lines_without_any_answer_are_not_probed() -> None:
    def no_answer(content: str) -> httpx.Response:
        raise httpx.ReadError("reset")

    execution = await planned_execution(20, no_answer, ok(PING), max_attempts=2, model_in_flight=20)
    await execution.turn(request())
    assert PING not in execution.sent


async def test_a_slice_that_was_stopped_sends_no_probe() -> None:
    execution = await planned_execution(20, lambda _: status(500), ok(PING), model_in_flight=20)
    answer = execution.answer

    async def stopped_before(http_request: httpx.Request) -> httpx.Response:
        execution.environment.cancel()
        await asyncio.sleep(1)
        return await answer(http_request)

    execution.answer = stopped_before
    await execution.run(request(cancel_grace_seconds=5))
    assert PING not in execution.sent
