"""Running slices follow changes that an operator makes to the weight and the cap of a tenant."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from batchwright.activities.services.holds_caps_and_weights import StoredTenantSettings
from batchwright.contracts.temporal_payloads.batch import Caller, ModelCounts
from batchwright.contracts.terms import HoldKind
from batchwright.database.records import ApiKeyRow
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.scopes import Scope
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    eventually,
    in_seconds,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.background_tasks import reasons_published
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START, an_order

pytestmark = pytest.mark.usefixtures("skipped_waits")


OTHER = 1_000_000  # contents from here on are those of the other tenant


class Backend:
    """A backend whose responses take a second. It counts all requests in flight, and those of two tenants."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.received = Counter[str]()

    async def answer(self, asked: httpx.Request) -> httpx.Response:
        self.in_flight += 1
        self.received[TENANT if int(content_of(asked)) < OTHER else "other"] += 1
        await asyncio.sleep(1.0)
        self.in_flight -= 1
        return ok("")


@asynccontextmanager
async def running_worker(database: MemoryDatabase) -> AsyncGenerator[tuple[ExecutionFixture, Backend]]:
    """Yield a worker with 16 permits, which reads weights and caps from the database, and its backend."""
    shares, backend = StoredTenantSettings(database, "own"), Backend()
    execution = ExecutionFixture(ok, shares=shares, model_in_flight=16, adaptive_limits=False)
    execution.answer = backend.answer
    execution.context.permits.clock = time.monotonic  # the clock that skips waits
    reading = asyncio.create_task(shares.run())
    try:
        yield execution, backend
    finally:
        reading.cancel()


async def test_a_running_slice_follows_a_changed_cap_of_its_tenant() -> None:
    database = MemoryDatabase()
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(400)])
        running = execution.start(request(slice_seconds=300))
        await eventually(lambda: backend.in_flight == 16)
        for cap, expected in ((2, 2), (5, 5), (None, 16), (1, 1), (100, 16)):
            await database.quotas.change(TENANT, {"max_in_flight": cap}, START)
            await asyncio.sleep(5)
            assert backend.in_flight == expected
        assert (await running).completed == 400


async def test_a_batch_says_that_its_tenant_is_at_its_cap_until_the_cap_is_raised() -> None:
    database = MemoryDatabase()
    await database.quotas.change(TENANT, {"max_in_flight": 2}, START)
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(300)])
        running = execution.start(request(slice_seconds=300))
        await eventually(lambda: len(execution.sent) > 20)
        await reasons_published()
        assert [reason.reason for _, reason in execution.reported_reasons] == [
            "the tenant has as many requests in flight as its `max_in_flight` allows"
        ]
        labels = {"model": MODEL, "limit": "tenant_max_in_flight"}
        assert execution.counted("batchwright_model_limited_seconds_total", **labels) > 5
        labels = {"tenant": TENANT, "limit": "tenant_max_in_flight"}
        assert execution.counted("batchwright_tenant_limited_seconds_total", **labels) > 5
        await database.quotas.change(TENANT, {"max_in_flight": None}, START)
        assert (await running).completed == 300
        await reasons_published()
        assert not execution.reported_reasons[-1][1].reason
        assert backend.in_flight == 0


async def test_a_running_slice_follows_a_changed_rate_of_its_tenant_and_says_so() -> None:
    database = MemoryDatabase()
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(900)])
        running = execution.start(request(slice_seconds=300))
        await eventually(lambda: backend.in_flight == 16)
        for rate, least, most in ((120, 115, 120), (30, 28, 30), (None, 400, 900)):
            await database.quotas.change(TENANT, {"backend_requests_per_minute": rate}, START)
            await asyncio.sleep(5)
            before = len(execution.sent)
            await asyncio.sleep(60)
            assert least <= len(execution.sent) - before <= most
            if rate == 30:
                await reasons_published()
                assert execution.reported_reasons[-1][1].reason == (
                    "limited by the tenant's rate of 30 requests per minute"
                )
        assert (await running).completed == 900


async def test_responses_without_usage_count_as_many_tokens_as_was_estimated() -> None:
    database = MemoryDatabase()
    await database.quotas.change(TENANT, {"backend_tokens_per_minute": 3_000}, START)
    async with running_worker(database) as (execution, backend):
        answer = backend.answer

        async def without_usage(asked: httpx.Request) -> httpx.Response:
            await answer(asked)
            return httpx.Response(200, json={})

        execution.answer = without_usage
        await plan_slice(execution.storage, [line_of(number) for number in range(100)])
        running = execution.start(request(slice_seconds=300))
        await asyncio.sleep(60)
        assert 5 < len(execution.sent) < 15  # some 280 tokens each
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_running_slice_follows_a_changed_cap_of_the_api_key_of_its_batch() -> None:
    database = MemoryDatabase()
    key = ApiKeyRow(id="key_1", tenant=TENANT, prefix="abc", scopes=[Scope.WRITE], created_at=START)
    await database.tenants.create(TENANT, START)
    await database.api_keys.insert(key, SecretHash(b"", b""))
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(300)])
        running = execution.start(request(slice_seconds=300, caller=Caller(key_id="key_1")))
        await eventually(lambda: backend.in_flight == 16)
        for cap, expected in ((2, 2), (5, 5), (0, 16)):
            await database.api_keys.limit("key_1", max_in_flight=cap)
            await asyncio.sleep(5)
            assert backend.in_flight == expected
        assert (await running).completed == 300


async def test_a_worker_takes_other_slices_while_a_tenant_is_at_its_cap() -> None:
    database = MemoryDatabase()
    await database.quotas.change(TENANT, {"max_in_flight": 1}, START)
    async with running_worker(database) as (execution, backend):
        demand = execution.context.demand
        await plan_slice(execution.storage, [line_of(number) for number in range(50)])
        demand.take(MODEL, "slot")
        running = execution.start(request(slice_seconds=300))
        await eventually(lambda: len(execution.sent) > 3)
        assert demand.wants_another(MODEL)
        with ExitStack() as others:
            for number in range(4):
                demand.take(MODEL, number)
                held = others.enter_context(demand.holding(MODEL, MODEL, TENANT, "another batch"))
                demand.lines_read(held, 0, lambda: 0)
            assert not demand.wants_another(MODEL)  # it has enough slices of this tenant
        assert (await running).completed == 50
        assert backend.in_flight == 0


async def test_running_slices_follow_a_changed_weight_of_their_tenant() -> None:
    database = MemoryDatabase()
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(1500)])
        await plan_slice(execution.storage, [line_of(OTHER + number) for number in range(1500)], "other")
        of_other = request(
            tenant="other", batch_id="batch_" + "f" * 32, ingest_prefix="other", slice_seconds=300
        )
        running = [execution.start(request(slice_seconds=300)), execution.start(of_other)]
        for weight, share in ((None, 1 / 2), (3.0, 3 / 4), (1 / 3, 1 / 4), (None, 1 / 2)):
            await database.quotas.change(TENANT, {"weight": weight}, START)
            await asyncio.sleep(5)
            backend.received.clear()
            await asyncio.sleep(20)
            assert backend.received[TENANT] / backend.received.total() == pytest.approx(share, abs=0.03)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.parametrize(("kind", "name"), [(HoldKind.TENANT, TENANT), (HoldKind.MODEL, MODEL)])
async def test_a_running_slice_sends_nothing_while_its_tenant_or_model_is_held(
    kind: HoldKind, name: str
) -> None:
    database = MemoryDatabase()
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(400)])
        running = execution.start(request(slice_seconds=300))
        await eventually(lambda: backend.in_flight == 16)
        await database.holds.put(kind, name, START)
        await asyncio.sleep(5)
        assert backend.in_flight == 0
        sent = len(execution.sent)
        await asyncio.sleep(60)
        assert len(execution.sent) == sent
        await database.holds.remove(kind, name)
        assert (await running).completed == 400
        await reasons_published()
        assert execution.reported_reasons == []  # control workers report holds


async def test_a_tenant_that_is_held_leaves_the_worker_to_others() -> None:
    database = MemoryDatabase()
    await database.holds.put(HoldKind.TENANT, TENANT, START)
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(50)])
        await plan_slice(execution.storage, [line_of(OTHER + number) for number in range(50)], "other")
        held = execution.start(request(slice_seconds=300))
        of_other = request(tenant="other", batch_id="batch_" + "f" * 32, ingest_prefix="other")
        assert (await execution.run(of_other)).completed == 50
        assert backend.received == {"other": 50}
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)


async def test_a_held_slice_ends_at_its_deadline() -> None:
    database = MemoryDatabase()
    await database.holds.put(HoldKind.MODEL, MODEL, START)
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(50)])
        result = await execution.run(request(deadline=in_seconds(30)))
        assert (result.finished, result.completed, len(execution.sent)) == (False, 0, 0)
        assert backend.in_flight == 0


async def test_running_slices_follow_a_changed_priority_of_their_batch() -> None:
    """Lines of the batch with fewer lines left are sent first, until the other batch gets a
    higher priority.
    """
    database, large = MemoryDatabase(), "batch_" + "f" * 32
    for batch_id, lines in ((BATCH, 5_000), (large, 50_000)):
        await in_progress(database, TENANT, batch_id, lines)
    async with running_worker(database) as (execution, backend):
        await plan_slice(execution.storage, [line_of(number) for number in range(1500)])
        await plan_slice(execution.storage, [line_of(OTHER + number) for number in range(1500)], "other")
        of_large = request(batch_id=large, ingest_prefix="other", slice_seconds=300)
        running = [execution.start(request(slice_seconds=300)), execution.start(of_large)]
        for priority, share in ((3, 4 / 5), (4, 1 / 3), (2, 2 / 3), (3, 4 / 5)):
            await database.operator_batches.set_priority(TENANT, large, priority)
            await asyncio.sleep(5)
            backend.received.clear()
            await asyncio.sleep(20)
            assert backend.received[TENANT] / backend.received.total() == pytest.approx(share, abs=0.05)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def in_progress(database: MemoryDatabase, tenant: str, batch_id: str, lines: int) -> None:
    now = datetime.now(UTC)
    order = an_order(batch_id, tenant, created_at=now, deadline=now + timedelta(hours=24))
    await database.batches.upsert(order)
    models = [ModelCounts(model=MODEL, lines=lines)]
    await database.batches.start(tenant, batch_id, total=lines, models=models, at=now)
