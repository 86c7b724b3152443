"""A slice of which one line gets bad responses, all others good ones: its results and its metrics."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.terms import Endpoint
from batchwright.rules.dispatch.retry_policy import Budget
from batchwright.rules.results.segment_format import RecordKind
from docs.error_codes import ANSWER_OUTCOMES, AnswerOutcome
from tests.activities.execution.fixture import ExecutionFixture, plan_slice, request
from tests.fakes import hostile_backends
from tests.fakes.hostile_backends import LIMIT, Bad, request_body
from tests.fakes.raw_servers import read_request, served

LINES, POISON, ATTEMPTS = 8, 3, 3


class Server:
    """A server that answers one line badly a number of times, and counts its requests. Other
    lines succeed.
    """

    def __init__(self, bad: Bad, times: int) -> None:
        self._bad, self._left = bad, times
        self.request_count = 0
        self._good = hostile_backends.embedded(0, 1, 2).serve
        if bad.endpoint == hostile_backends.CHAT:
            self._good = hostile_backends.response(hostile_backends.GOOD)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        again = asyncio.StreamReader()
        again.feed_data(head + body)
        serve = self._good
        if f'"{POISON}"'.encode() in body:
            self.request_count += 1
            serve = self._bad.serve if self.request_count <= self._left else self._good
        await serve(again, writer)


@asynccontextmanager
async def execution_of(server: Server, **settings: object) -> AsyncGenerator[ExecutionFixture]:
    async with served(server.serve) as target:
        config = ModelConfig(backends=[GatewayConfig(url=f"http://{target.authority.decode()}")])
        execution = ExecutionFixture(
            lambda content: pytest.fail(content),
            config=config,
            sockets=True,
            max_response_bytes=LIMIT,
            **settings,
        )
        try:
            yield execution
        finally:
            await execution.clients.aclose()


async def planned(execution: ExecutionFixture, bad: Bad) -> SliceRequest:
    execution.hurry()
    bodies = [request_body(bad.endpoint, str(number)) for number in range(LINES)]
    lines = [b'{"custom_id":"c-%d","body":%b}' % (number, body) for number, body in enumerate(bodies)]
    await plan_slice(execution.storage, lines)
    return request(endpoint=Endpoint(bad.endpoint))


async def finished(execution: ExecutionFixture, slice_: SliceRequest) -> SliceResult:
    """Run the slice again and again until it is finished, and return its result."""
    for _ in range(50):
        result = await execution.turn(slice_)
        if result is not None:
            return result
        execution.next_attempt()
    raise AssertionError("it never ended")


def rows(*budgets: Budget) -> list[AnswerOutcome]:
    """Return the rows of the reference table of outcomes whose failures use up one of these retry budgets.

    Slow failures are left out, because the tests of retries cover them.
    """
    quick = {what for what, bad in hostile_backends.ANSWERS.items() if bad.out_of_time is None}
    return [row for row in ANSWER_OUTCOMES if row.budget in budgets and row.what in quick]


@pytest.mark.parametrize("row", rows(Budget.SETTLED, Budget.ATTEMPT), ids=lambda row: row.what)
async def test_a_line_that_always_gets_a_bad_response_ends_as_the_reference_says(row: AnswerOutcome) -> None:
    bad = hostile_backends.ANSWERS[row.what]
    server = Server(bad, times=1000)
    async with execution_of(server, max_attempts=ATTEMPTS) as execution:
        result = await finished(execution, await planned(execution, bad))
        records = await execution.settled()
        line = json.loads(records[sorted(records)[POISON]].payload)
        is_open = execution.circuit("m").is_open
    assert server.request_count == (ATTEMPTS if row.budget is Budget.ATTEMPT else 1)
    assert not is_open
    if isinstance(row.ends, LineCode):
        assert (line["response"], line["error"]["code"]) == (None, row.ends)
    else:
        assert line["error"] is None
    succeeded = line["response"] is not None and line["response"]["status_code"] == 200
    assert result == SliceResult(finished=True, completed=LINES - 1 + succeeded, failed=1 - succeeded)
    assert succeeded is (row.ends == "the response, in the output file")


@pytest.mark.parametrize("row", rows(Budget.CAPACITY), ids=lambda row: row.what)
async def test_a_backend_with_a_temporary_fault_costs_no_line_an_attempt(row: AnswerOutcome) -> None:
    bad = hostile_backends.ANSWERS[row.what]
    server = Server(bad, times=4)
    async with execution_of(server, max_attempts=1) as execution:
        result = await finished(execution, await planned(execution, bad))
        kinds = {record.kind for record in await execution.records()}
    assert result == SliceResult(finished=True, completed=LINES)
    assert server.request_count == 5
    assert kinds == {RecordKind.SETTLED}
