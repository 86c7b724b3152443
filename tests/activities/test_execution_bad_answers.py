"""One line that a backend answers badly, among others that it answers well: the books of the slice."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.openai import Endpoint
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.rules.retries import Budget
from batchwright.rules.segments import Kind
from docs.errors import ANSWERS, Answer
from tests.activities.execution_house import House, plan_slice, request
from tests.fakes import hostile
from tests.fakes.hostile import LIMIT, Bad, asked
from tests.unit.sockets import read_request, served

LINES, POISON, ATTEMPTS = 8, 3, 3


class Server:
    """Answers one line badly, so many times, and all others well; counts how often that one is asked."""

    def __init__(self, bad: Bad, times: int) -> None:
        self._bad, self._left = bad, times
        self.asked = 0
        self._good = hostile.embedded(0, 1, 2).serve
        if bad.endpoint == hostile.CHAT:
            self._good = hostile.said(hostile.GOOD)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        again = asyncio.StreamReader()
        again.feed_data(head + body)
        serve = self._good
        if f'"{POISON}"'.encode() in body:
            self.asked += 1
            serve = self._bad.serve if self.asked <= self._left else self._good
        await serve(again, writer)


@asynccontextmanager
async def house_of(server: Server, **settings: object) -> AsyncGenerator[House]:
    async with served(server.serve) as target:
        config = ModelConfig(backends=[GatewayConfig(url=f"http://{target.authority.decode()}")])
        house = House(
            lambda content: pytest.fail(content),
            config=config,
            sockets=True,
            max_response_bytes=LIMIT,
            **settings,
        )
        try:
            yield house
        finally:
            await house.clients.aclose()


async def planned(house: House, bad: Bad) -> SliceRequest:
    house.hurry()
    bodies = [asked(bad.endpoint, str(number)) for number in range(LINES)]
    lines = [b'{"custom_id":"c-%d","body":%b}' % (number, body) for number, body in enumerate(bodies)]
    await plan_slice(house.storage, lines)
    return request(endpoint=Endpoint(bad.endpoint))


async def finished(house: House, slice_: SliceRequest) -> SliceResult:
    """Over as many turns as it takes."""
    for _ in range(50):
        result = await house.turn(slice_)
        if result is not None:
            return result
        house.next_attempt()
    raise AssertionError("it never ended")


def rows(*budgets: Budget) -> list[Answer]:
    """Without those that take their time: they are in the tests of retries."""
    quick = {what for what, bad in hostile.ANSWERS.items() if not bad.settings}
    return [row for row in ANSWERS if row.budget in budgets and row.what in quick]


@pytest.mark.parametrize("row", rows(Budget.SETTLED, Budget.ATTEMPT), ids=lambda row: row.what)
async def test_a_line_that_is_answered_badly_for_ever_ends_as_the_reference_says(row: Answer) -> None:
    bad = hostile.ANSWERS[row.what]
    server = Server(bad, times=1000)
    async with house_of(server, max_attempts=ATTEMPTS) as house:
        result = await finished(house, await planned(house, bad))
        records = await house.settled()
        line = json.loads(records[sorted(records)[POISON]].payload)
        is_open = house.circuit("m").is_open
    assert server.asked == (ATTEMPTS if row.budget is Budget.ATTEMPT else 1)
    assert not is_open
    if isinstance(row.ends, LineCode):
        assert (line["response"], line["error"]["code"]) == (None, row.ends)
    else:
        assert line["error"] is None
    succeeded = line["response"] is not None and line["response"]["status_code"] == 200
    assert result == SliceResult(finished=True, completed=LINES - 1 + succeeded, failed=1 - succeeded)
    assert succeeded is (row.ends == "its answer, in the output")


@pytest.mark.parametrize("row", rows(Budget.CAPACITY), ids=lambda row: row.what)
async def test_a_backend_that_is_not_itself_for_a_while_costs_no_line_anything(row: Answer) -> None:
    bad = hostile.ANSWERS[row.what]
    server = Server(bad, times=4)
    async with house_of(server, max_attempts=1) as house:
        result = await finished(house, await planned(house, bad))
        kinds = {record.kind for record in await house.records()}
    assert result == SliceResult(finished=True, completed=LINES)
    assert server.asked == 5
    assert kinds == {Kind.SETTLED}
