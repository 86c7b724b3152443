"""A slice stops when its batch has reached the cap on its cost."""

import pytest

from batchwright.contracts.execution import SliceResult
from batchwright.contracts.prices import PriceConfig
from batchwright.database.tables.batch_snapshots import BatchKey
from batchwright.database.tables.progress import BatchSpending
from batchwright.rules.costs import amount_of
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    line_of,
    ok,
    plan_slice,
    request,
)

pytestmark = pytest.mark.usefixtures("skipped_waits")

PRICES = PriceConfig(currency="EUR", input="1000000", request="0.5")  # a line of `ok` costs 3.5


async def run(cap: str | None, spent: str = "0", lines: int = 20) -> tuple[ExecutionFixture, SliceResult]:
    """Run a slice that sends one line at a time, in a batch that has cost `spent` elsewhere."""
    execution = ExecutionFixture(ok, model_in_flight=1)
    if cap is not None:
        spending = BatchSpending(amount_of(cap), amount_of(spent))
        execution.progress.caps[BatchKey(TENANT, BATCH)] = spending
    await plan_slice(execution.storage, [line_of(number) for number in range(lines)])
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


async def test_without_a_cap_all_lines_are_sent_and_their_cost_is_a_metric() -> None:
    execution, result = await run(cap=None)
    assert result == SliceResult(finished=True, completed=20)
    cost = execution.metrics.request_cost.labels(MODEL, "EUR")
    assert cost.value == 70
