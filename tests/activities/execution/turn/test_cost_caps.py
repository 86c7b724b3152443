"""A slice stops when its batch has reached the cap on its cost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from batchwright.activities.services.batch_cost_cap import SliceCost
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import BatchSpending
from batchwright.rules.results.token_usage import TokenUsage
from batchwright.rules.token_costs import amount_of
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")

PRICES = PriceConfig(currency="EUR", input="1000000", request="0.5")  # a line of `ok` costs 3.5


def capped(execution: ExecutionFixture, cap: str, spent: str = "0") -> None:
    spending = BatchSpending(amount_of(cap), amount_of(spent))
    execution.progress.caps[BatchKey(TENANT, BATCH)] = spending


@asynccontextmanager
async def refreshed(execution: ExecutionFixture) -> AsyncGenerator[None]:
    """Let the worker read the costs of batches every second."""

    async def refresh() -> None:
        while True:
            await asyncio.sleep(1)
            await execution.context.costs.refresh()

    task = asyncio.create_task(refresh())
    try:
        yield
    finally:
        task.cancel()


async def run(cap: str | None, spent: str = "0", lines: int = 20) -> tuple[ExecutionFixture, SliceResult]:
    """Run a slice that sends one line at a time, and return its fixture and its result.

    Args:
        cap: maximum cost of the batch; None if it is not limited.
        spent: what other slices of the batch have already cost.
        lines: number of lines of the slice.
    """
    execution = ExecutionFixture(ok, model_in_flight=1)
    if cap is not None:
        capped(execution, cap, spent)
    await plan_slice(execution.storage, [line_of(number) for number in range(lines)])
    async with refreshed(execution):
        return execution, await execution.run(request(prices=PRICES))


async def test_no_line_is_sent_after_the_one_that_reaches_the_cap() -> None:
    execution, result = await run(cap="10")
    assert result == SliceResult(over_cap=True, completed=3)
    assert len(execution.sent) == len(await execution.settled()) == 3


async def test_what_other_slices_have_cost_counts() -> None:
    execution, result = await run(cap="10", spent="6.5")
    assert result == SliceResult(over_cap=True, completed=1)
    execution, result = await run(cap="10", spent="10")
    assert (result, execution.sent) == (SliceResult(over_cap=True), [])


async def test_a_slice_whose_last_line_reaches_the_cap_is_finished() -> None:
    _, result = await run(cap="10", lines=3)
    assert result == SliceResult(finished=True, completed=3)


async def test_a_slice_continues_if_the_cap_was_raised_before_it_was_recorded_as_reached() -> None:
    execution = ExecutionFixture(ok, model_in_flight=1)
    capped(execution, "3")
    raised: list[int] = []

    async def raise_cap(batch: BatchKey, amount: int) -> bool:
        raised.append(len(execution.sent))
        capped(execution, "100")
        return False

    execution.progress.reach_cap = raise_cap
    await plan_slice(execution.storage, [line_of(number) for number in range(20)])
    async with refreshed(execution):
        assert await execution.run(request(prices=PRICES)) == SliceResult(finished=True, completed=20)
    assert raised == [1]  # nothing was sent until the cap was read again


async def run_with_line_in_flight(
    answer: Callable[[SliceCost], Awaitable[httpx.Response]],
) -> tuple[ExecutionFixture, SliceResult]:
    """Run a slice of two lines on two backends.

    The first line completes, and its cost reaches the batch's cap. The second line is in flight at that time,
    and gets the response that `answer` returns.
    """
    urls = ("http://one", "http://two")
    config = ModelConfig(backends=[GatewayConfig(url=url) for url in urls])
    execution = ExecutionFixture(ok, config=config, model_in_flight=2)
    capped(execution, "3")
    costs, track = list[SliceCost](), execution.context.costs.track

    async def noted(request: SliceRequest, usage: TokenUsage, requests: int) -> SliceCost:
        cost = await track(request, usage, requests)
        assert cost is not None
        costs.append(cost)
        return cost

    async def reply(asked: httpx.Request) -> httpx.Response:
        return ok("0") if content_of(asked) == "0" else await answer(costs[0])

    execution.context.costs.track = noted
    execution.answer = reply
    await plan_slice(execution.storage, [line_of(number) for number in range(2)])
    async with refreshed(execution):
        return execution, await execution.run(request(prices=PRICES, cancel_grace_seconds=5))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(4, SliceResult(finished=True, completed=2)), (60, SliceResult(over_cap=True, completed=1))],
)
async def test_requests_in_flight_at_the_cap_count_if_they_finish_within_the_grace(
    seconds: float, expected: SliceResult
) -> None:
    async def late(cost: SliceCost) -> httpx.Response:
        await asyncio.sleep(seconds)
        assert cost.is_over_cap
        return ok("1")

    execution, result = await run_with_line_in_flight(late)
    assert result == expected
    assert len(execution.sent) == 2


async def test_a_line_that_a_backend_refuses_after_the_cap_goes_to_no_other_backend() -> None:
    async def refuse(cost: SliceCost) -> httpx.Response:
        while not cost.is_over_cap:
            await asyncio.sleep(0)
        return status(503)

    execution, result = await run_with_line_in_flight(refuse)
    assert result == SliceResult(over_cap=True, completed=1)
    assert len(execution.sent) == 2


async def test_results_at_the_cap_are_stored_even_after_a_long_outage_of_storage() -> None:
    async def outage(execution: ExecutionFixture) -> None:
        await asyncio.sleep(600)
        execution.storage.failing = None

    execution = ExecutionFixture(ok, model_in_flight=1)
    capped(execution, "3")
    await plan_slice(execution.storage, [line_of(number) for number in range(2)])

    async def reply(asked: httpx.Request) -> httpx.Response:
        execution.storage.failing = StorageUnavailable("away")
        return ok("0")

    execution.answer = reply
    ending = asyncio.create_task(outage(execution))
    async with refreshed(execution):
        result = await execution.run(request(prices=PRICES, cancel_grace_seconds=5))
    await ending
    assert result == SliceResult(over_cap=True, completed=1)
    assert len(await execution.settled()) == 1


async def test_without_a_cap_all_lines_are_sent_and_their_cost_is_a_metric() -> None:
    execution, result = await run(cap=None)
    assert result == SliceResult(finished=True, completed=20)
    cost = execution.metrics.request_cost.labels(MODEL, "EUR")
    assert cost.value == 70
