"""Lines whose requests go out at once and are awaited by nobody: what becomes of them is the same."""

import asyncio
import contextlib
from collections.abc import Iterable

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from activities.slices.ownership import Word
from batchwright.rules.segments import Kind
from tests.activities.execution_house import (
    MODEL,
    House,
    content_of,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")
LAST = "3"


class AtOnce(House):
    """Four lines, one after the other: the first opens the connection, `LAST` is the last one.

    Of `LAST` each ask is answered by the next of `answers`, statuses and errors; once there is none, as all
    others.
    """

    def __init__(self, answers: Iterable[int | type[httpx.TransportError]] = (), **settings: object) -> None:
        super().__init__(ok, model_in_flight=1, **settings)
        self._answers = list(answers)
        self.answer = self._next

    async def planned(self) -> None:
        await plan_slice(self.storage, [line_of(n) for n in range(4)])

    async def before(self) -> None:
        """What happens before `LAST` is answered."""

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
        """Permits, and requests of the lane: none is left behind."""
        route = self.backends.route_of(MODEL)
        assert route is not None
        return self.tools.permits.used, route.lanes[0].outstanding


async def test_all_but_the_first_go_out_at_once() -> None:
    house = AtOnce()
    await house.planned()
    result = await house.run(request())
    assert (result.finished, result.completed, house.engine.begun) == (True, 4, 3)
    assert house.in_flight == (0, 0)
    assert (
        house.counted("batchwright_requests_total", model=MODEL, backend="http://backend", status="200") == 4
    )


@pytest.mark.parametrize("answer", [500, 503, httpx.ReadError, httpx.ConnectError])
async def test_a_failure_of_one_is_asked_again(answer: int | type[httpx.TransportError]) -> None:
    house = AtOnce([answer])
    await house.planned()
    while (result := await house.turn(request())) is None:
        house.next_attempt()
    assert (result.completed, house.sent.count(LAST)) == (4, 2)
    assert house.in_flight == (0, 0)


async def test_an_error_of_its_own_settles_it() -> None:
    house = AtOnce([400])
    await house.planned()
    result = await house.run(request())
    assert (result.completed, result.failed, house.sent.count(LAST)) == (3, 1, 1)


@pytest.mark.parametrize("word", [Word.CANCEL, Word.LOST])
async def test_one_that_is_under_way_when_its_slice_is_ended_is_called_off(word: Word) -> None:
    class Ended(AtOnce):
        async def before(self) -> None:
            self.server.word = word
            await asyncio.Event().wait()

    house = Ended()
    await house.planned()
    with contextlib.suppress(ApplicationError, asyncio.CancelledError):
        await house.run(request(cancel_grace_seconds=1))
    assert house.engine.begun == 3
    assert (house.in_flight, house.tools.budget.held) == ((0, 0), 0)
    assert len(await house.settled()) <= 3


async def test_records_of_all_are_results() -> None:
    house = AtOnce()
    await house.planned()
    await house.run(request())
    assert {record.kind for record in await house.records()} == {Kind.SETTLED}
