"""Lines that a backend answers with 500: while lines of another tenant succeed, without other lines, and in
an outage.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.contracts.terms import Endpoint
from tests.activities.execution.fixture import ExecutionFixture, plan_slice, request
from tests.fakes import hostile_backends
from tests.fakes.bad_lines import DOWN, LISTING, BadLines
from tests.fakes.hostile_backends import response
from tests.fakes.raw_servers import Serve, served

LINES, ATTEMPTS = 300, 5
NOISY, QUIET = "noisy", "quiet"


@asynccontextmanager
async def execution_with(server: BadLines, **settings: object) -> AsyncGenerator[ExecutionFixture]:
    async with served(server.serve) as target:
        config = ModelConfig(backends=[GatewayConfig(url=f"http://{target.authority.decode()}")])
        execution = ExecutionFixture(
            lambda content: pytest.fail(content), config=config, sockets=True, **settings
        )
        try:
            yield execution
        finally:
            await execution.clients.aclose()


async def planned(execution: ExecutionFixture, tenant: str, contents: list[str]) -> None:
    bodies = [hostile_backends.request_body(hostile_backends.CHAT, content) for content in contents]
    lines = [b'{"custom_id":"c-%d","body":%b}' % (number, body) for number, body in enumerate(bodies)]
    await plan_slice(execution.storage, lines, tenant)


async def finished(execution: ExecutionFixture, tenant: str) -> SliceResult:
    """Run the tenant's slice again and again until it is finished, and return its result."""
    batch_id = "batch_" + tenant.encode().hex().ljust(32, "0")
    slice_ = request(
        tenant=tenant, batch_id=batch_id, ingest_prefix=tenant, endpoint=Endpoint.CHAT_COMPLETIONS
    )
    for _ in range(100):
        result = await execution.turn(slice_)
        if result is not None:
            return result
        execution.next_attempt()
    raise AssertionError("it never ended")


def bad_lines(count: int, what: str = "") -> list[str]:
    return [f"bad {number} {what}" for number in range(count)]


@pytest.mark.parametrize("what", ["", "why is my connection refused?"])
async def test_bad_lines_of_one_tenant_end_with_their_500_and_fail_no_line_of_another(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = BadLines()
    async with execution_with(server, model_in_flight=32) as execution:
        bad, good = bad_lines(LINES, what), [f"good {number}" for number in range(LINES)]
        await planned(execution, NOISY, bad)
        await planned(execution, QUIET, good)
        noisy, quiet = await asyncio.gather(finished(execution, NOISY), finished(execution, QUIET))
    assert quiet == SliceResult(finished=True, completed=LINES)
    assert noisy == SliceResult(finished=True, failed=LINES)
    assert {server.request_counts[content] for content in good} == {1}
    assert {server.request_counts[content] for content in bad} == {ATTEMPTS}
    assert "circuit breaker opened" not in caplog.text


@pytest.mark.parametrize("what", ["", "why is my connection refused?"])
async def test_a_batch_of_only_bad_lines_ends_while_the_backend_answers_other_requests(what: str) -> None:
    server = BadLines()
    async with execution_with(server) as execution:
        bad = bad_lines(LINES, what)
        await planned(execution, NOISY, bad)
        assert await finished(execution, NOISY) == SliceResult(finished=True, failed=LINES)
        assert not execution.circuit("m").is_open
    assert {server.request_counts[content] for content in bad} == {ATTEMPTS}
    assert 0 < server.request_counts["ping"] <= LINES


@pytest.mark.parametrize(
    ("listing", "health"),
    [(LISTING, LISTING), (DOWN, LISTING), (LISTING, response(b"", status=b"404 Not Found"))],
    ids=["both", "health", "list of models"],
)
async def test_bad_lines_end_even_if_the_backend_answers_only_health_checks_or_its_model_list(
    listing: Serve, health: Serve
) -> None:
    server = BadLines(good=DOWN, listing=listing, health=health)
    async with execution_with(server) as execution:
        execution.hurry()
        await planned(execution, NOISY, bad_lines(6))
        assert await finished(execution, NOISY) == SliceResult(finished=True, failed=6)


@pytest.mark.parametrize(
    ("listing", "health"),
    [(DOWN, DOWN), (LISTING, DOWN)],
    ids=["not even that", "and says that it is not healthy"],
)
async def test_a_backend_that_answers_nothing_normally_fails_no_line_and_its_error_is_quoted(
    listing: Serve, health: Serve
) -> None:
    server = BadLines(good=DOWN, listing=listing, health=health)
    async with execution_with(server, max_attempts=2) as execution:
        await planned(execution, NOISY, bad_lines(20))
        error = await execution.failure(request(ingest_prefix=NOISY))
        assert not await execution.settled()
    assert error.type == Failure.DEFERRED
    assert error.message.startswith(
        "the backend accepts no requests now: it answered 500; "
        "the backend's last error: \"cannot answer 'bad "
    )
