"""Slices that a worker can do without give up their slots, so that slices of other batches can run."""

import asyncio
import dataclasses
import time
from contextlib import ExitStack

import httpx
import pytest

from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from tests.activities.execution.fixture import (
    MODEL,
    TENANT,
    ExecutionFixture,
    in_seconds,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START

pytestmark = pytest.mark.usefixtures("skipped_waits")
PLACES = 16  # of the queue that models share


async def seconds_until_it_yields(*, same_tenant: int) -> float:
    """Return how many seconds a slice runs before it gives up its slot for another batch.

    The slice's tenant is at its cap. All slots of the worker are in use, `same_tenant` of them by slices of
    this tenant.
    """
    database = MemoryDatabase()
    shares = StoredTenantSettings(database, "own")
    await database.quotas.change(TENANT, {"max_in_flight": 1}, START)
    await shares.refresh()
    execution = ExecutionFixture(ok, shares=shares, model_in_flight=16, adaptive_limits=False)
    context, environment = execution.context, execution.environment
    context.permits.clock = time.monotonic  # the clock that skips waits
    environment.info = dataclasses.replace(environment.info, task_queue=DISPATCH_QUEUE)
    await plan_slice(execution.storage, [line_of(number) for number in range(900)])

    async def answer(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(1.0)
        return ok("")

    execution.answer = answer
    with ExitStack() as others:
        for number in range(PLACES + 1):
            tenant = TENANT if number < same_tenant else "another"
            held = others.enter_context(context.demand.holding(ALL_MODELS, MODEL, tenant, f"batch {number}"))
            context.demand.take(ALL_MODELS, held)
            context.demand.lines_read(held, 5, lambda: 5)
        context.demand.take(ALL_MODELS, "its own")
        context.demand.set_waiting({MODEL: {"waiting": 1}}, [MODEL])
        began = time.monotonic()
        error = await execution.failure(request(slice_seconds=30, deadline=in_seconds(900)))
    assert error.type == Failure.TURN_OVER
    return time.monotonic() - began


async def test_a_tenant_at_its_cap_gives_up_a_place_of_the_shared_queue_within_seconds() -> None:
    assert await seconds_until_it_yields(same_tenant=10) < 10


async def test_a_tenant_with_few_slices_keeps_its_places_for_a_turn_although_it_is_at_its_cap() -> None:
    assert await seconds_until_it_yields(same_tenant=2) >= 30


def seek_another_tenant(execution: ExecutionFixture, stack: ExitStack) -> None:
    """Give the worker so many lines of the slice's tenant that it polls Temporal for slices of
    other tenants.
    """
    demand = execution.context.demand
    held = stack.enter_context(demand.holding(MODEL, MODEL, TENANT, "another batch"))
    demand.take(MODEL, held)
    demand.lines_read(held, 100_000, lambda: 100_000)
    demand.set_waiting({MODEL: {TENANT: 1, "sought": 1}})
    assert demand.wants_another(MODEL)
    demand.take(MODEL, "its own")


async def test_a_slice_that_a_search_for_another_tenant_found_returns_to_its_queue_unsent() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    with ExitStack() as stack:
        seek_another_tenant(execution, stack)
        error = await execution.failure(request())
    assert error.type == Failure.TURN_OVER
    assert execution.sent == []


async def test_a_slice_that_a_search_for_another_tenant_found_runs_if_its_last_worker_crashed() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    execution.next_worker()
    with ExitStack() as stack:
        seek_another_tenant(execution, stack)
        result = await execution.run(request())
    assert (result.finished, result.completed) == (True, 1)


async def test_a_slice_past_its_deadline_ends_although_the_worker_seeks_another_tenant() -> None:
    execution = ExecutionFixture(ok)
    await plan_slice(execution.storage, [line_of(0)])
    with ExitStack() as stack:
        seek_another_tenant(execution, stack)
        result = await execution.run(request(deadline=in_seconds(-1)))
    assert not result.finished
