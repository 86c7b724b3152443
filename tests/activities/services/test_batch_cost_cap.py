"""The costs of batches that one process knows, and how it compares them with the caps of the batches."""

from batchwright.activities.services.batch_cost_cap import BatchCosts, SliceCost
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.contracts.terms import Usage
from batchwright.database.records import SliceProgress
from batchwright.rules.token_costs import amount_of
from tests.activities.execution.fixture import BATCH, MODEL, TENANT, request
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START, an_order

PRICES = PriceConfig(request="1")  # so a line costs 1


class Fleet:
    """A batch with a cap. The process `here` runs slices of it; other processes only report their costs."""

    def __init__(self, max_cost: str | None = "5") -> None:
        self.database, self.now = MemoryDatabase(), 0.0
        self._max_cost = max_cost
        self.here = BatchCosts(self.database.progress, lambda: self.now)

    async def start(self) -> None:
        batches, models = self.database.batches, [ModelCounts(model=MODEL, lines=100)]
        await batches.upsert(an_order(BATCH, TENANT, max_cost=self._max_cost))
        await batches.start(TENANT, BATCH, total=100, models=models, at=START, prices={MODEL: PRICES})

    async def report(self, number: int, completed: int) -> None:
        row = SliceProgress(
            tenant=TENANT,
            batch_id=BATCH,
            model=MODEL,
            number=number,
            generation=0,
            attempt=1,
            completed=completed,
            failed=0,
        )
        await self.database.progress.record([row])


def slice_of(number: int) -> SliceRequest:
    return request(number=number, prices=PRICES)


async def tracked(costs: BatchCosts, slice_: SliceRequest, usage: Usage, requests: int) -> SliceCost:
    cost = await costs.track(slice_, usage, requests)
    assert cost is not None
    return cost


async def test_the_line_that_reaches_the_cap_is_the_last_that_may_be_sent() -> None:
    fleet = Fleet()
    await fleet.start()
    cost = await tracked(fleet.here, slice_of(0), Usage(), 0)
    for _ in range(4):
        assert cost.add(Usage()) == amount_of("1")
    assert not cost.is_over_cap
    cost.add(Usage())
    assert cost.is_over_cap


async def test_slices_of_one_process_count_together_at_once() -> None:
    fleet = Fleet()
    await fleet.start()
    one, other = [await tracked(fleet.here, slice_of(number), Usage(), 0) for number in range(2)]
    for _ in range(3):
        one.add(Usage())
        other.add(Usage())
    assert one.is_over_cap
    assert other.is_over_cap


async def test_slices_of_other_processes_count_as_they_were_reported_last() -> None:
    fleet = Fleet()
    await fleet.start()
    here = await tracked(fleet.here, slice_of(0), Usage(), 0)
    await fleet.report(1, completed=5)
    assert not here.is_over_cap
    await fleet.here.refresh()
    assert here.is_over_cap


async def test_what_a_slice_reports_is_not_counted_twice() -> None:
    fleet = Fleet()
    await fleet.start()
    cost = await tracked(fleet.here, slice_of(0), Usage(), 0)
    for _ in range(4):
        cost.add(Usage())
    await fleet.report(0, completed=4)
    await fleet.here.refresh()
    assert not cost.is_over_cap
    fleet.here.end(cost)
    await fleet.here.refresh()
    fleet.now = 60.0
    other = await tracked(fleet.here, slice_of(1), Usage(), 0)
    await fleet.here.refresh()
    assert not other.is_over_cap
    other.add(Usage())
    assert other.is_over_cap


async def test_a_slice_that_comes_from_another_process_brings_its_cost_once() -> None:
    fleet = Fleet()
    await fleet.start()
    await fleet.report(0, completed=4)
    cost = await tracked(fleet.here, slice_of(0), Usage(), 4)
    assert not cost.is_over_cap
    await fleet.here.refresh()
    assert not cost.is_over_cap
    cost.add(Usage())
    assert cost.is_over_cap


async def test_the_next_turn_of_a_slice_in_the_same_process_brings_its_cost_once() -> None:
    fleet = Fleet()
    await fleet.start()
    first = await tracked(fleet.here, slice_of(0), Usage(), 0)
    first.add(Usage())
    first.add(Usage())
    fleet.here.end(first)
    second = await tracked(fleet.here, slice_of(0), Usage(), 2)
    assert not second.is_over_cap
    for _ in range(3):
        second.add(Usage())
    assert second.is_over_cap


async def test_a_cap_raised_before_it_is_recorded_as_reached_lets_the_batch_continue() -> None:
    fleet = Fleet("1")
    await fleet.start()
    cost = await tracked(fleet.here, slice_of(0), Usage(), 0)
    cost.add(Usage())
    assert (cost.is_over_cap, cost.ends_batch) == (True, False)
    assert await fleet.database.batches.set_max_cost(TENANT, BATCH, "2")
    await fleet.here.refresh()
    assert (cost.is_over_cap, cost.ends_batch) == (False, False)
    cost.add(Usage())
    await fleet.here.refresh()
    assert (cost.is_over_cap, cost.ends_batch) == (True, True)
    assert not await fleet.database.batches.set_max_cost(TENANT, BATCH, "3")


async def test_all_processes_end_a_batch_whose_cap_one_has_found_reached() -> None:
    fleet = Fleet("1")
    await fleet.start()
    there = BatchCosts(fleet.database.progress, lambda: fleet.now)
    cost, other = (
        await tracked(fleet.here, slice_of(0), Usage(), 0),
        await tracked(there, slice_of(1), Usage(), 0),
    )
    cost.add(Usage())
    await fleet.here.refresh()
    assert not other.is_over_cap
    await there.refresh()
    assert (other.is_over_cap, other.ends_batch) == (True, True)


async def test_a_batch_without_a_cap_is_never_over_it() -> None:
    fleet = Fleet(None)
    await fleet.start()
    cost = await tracked(fleet.here, slice_of(0), Usage(), 10**6)
    cost.add(Usage())
    assert not cost.is_over_cap
