"""How the limit of a backend for the whole fleet is divided between workers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, LimitConfig, ModelConfig
from batchwright.contracts.temporal_names import DISPATCH_QUEUE, inference_queue
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BackendLoad, InteractiveRate, WorkerHeartbeat
from batchwright.inference.limits.tenant_and_model_limits import FleetRate, Rates
from batchwright.inference.router import ModelRouter
from batchwright.rules.worker_stats import (
    ANY_MODEL_QUEUE,
    FRESH_SECONDS,
    polled_queue_stats,
    polled_queues,
    running_slice_stats,
)
from batchwright.worker import limit_share_updater
from batchwright.worker.limit_share_updater import LimitShareUpdater
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.routing import URLS, Clock, config_of, plain, route_of

A, B, C = URLS


def limited(in_flight: int, url: str = A) -> ModelConfig:
    return config_of(BackendConfig(url=url, in_flight=in_flight))


@dataclass
class Fleet:
    """Workers `one:1`, `two:1` and so on that share a database.

    `shares` has the parts of the limits of backends that `one:1` may use.
    """

    routers: list[ModelRouter]
    gateways: list[GatewayConfig] = field(default_factory=list[GatewayConfig])
    common_queue: str = ""

    def __post_init__(self) -> None:
        self.now, self.database, self.shares = (
            datetime(2026, 1, 1, tzinfo=UTC),
            MemoryDatabase(),
            dict[str, int](),
        )
        self.database.rows.clock = lambda: self.now
        self.rates: dict[str, Rates] = {}
        self.of_one = LimitShareUpdater(
            "one:1", self.database.workers, self, lambda _: self.common_queue, self._take
        )

    async def beat(self, *workers: str, queue: str = ANY_MODEL_QUEUE) -> None:
        for worker in workers:
            await self.database.workers.record_heartbeat(worker, polled_queue_stats([queue]))

    async def read(self) -> dict[str, int]:
        await self.of_one.refresh()
        return self.shares

    def _take(self, shares: Mapping[str, int], rates: Mapping[str, Rates]) -> None:
        self.shares, self.rates = dict(shares), dict(rates)

    async def run_slices(self, model: str, *workers: str) -> None:
        for worker in workers:
            stats = polled_queue_stats([ANY_MODEL_QUEUE]) | running_slice_stats({("batch_1", model): 1})
            await self.database.workers.record_heartbeat(worker, stats)

    async def requests_per_minute(self, model: str) -> float | None:
        await self.of_one.refresh()
        found = self.rates[model].requests
        return found and found.part


def fleet(*configs: ModelConfig) -> Fleet:
    return Fleet([route_of(Clock(), config, f"m{number}") for number, config in enumerate(configs)])


async def test_workers_divide_the_limit_of_a_backend() -> None:
    workers = fleet(limited(10))
    await workers.beat("one:1", "two:1", "three:1", "four:1")
    assert await workers.read() == {A: 3}


async def test_workers_that_run_slices_of_a_model_divide_its_rates() -> None:
    limits = LimitConfig(requests_per_minute=600, tokens_per_minute=7)
    workers = fleet(plain([A], limits=limits), plain([B]))
    assert await workers.requests_per_minute("m0") == 0.0  # until its own heartbeat is there
    await workers.beat("one:1", "two:1", "three:1")
    assert await workers.requests_per_minute("m0") == 200.0  # nobody runs its slices yet
    await workers.run_slices("m0", "two:1")
    await workers.run_slices("m1", "three:1")
    assert await workers.requests_per_minute("m0") == 0.0  # until the others see that it runs some
    await workers.run_slices("m0", "one:1")
    assert await workers.requests_per_minute("m0") == 300.0
    assert workers.rates == {"m0": Rates(FleetRate(600, 300.0), FleetRate(7, 4.0))}
    workers.now += timedelta(seconds=FRESH_SECONDS + 0.1)
    await workers.run_slices("m0", "one:1")
    assert await workers.requests_per_minute("m0") == 600.0


async def test_a_changed_rate_of_a_model_applies_when_the_registry_is_read() -> None:
    workers = fleet(plain([A]))
    await workers.run_slices("m0", "one:1")
    await workers.read()
    assert workers.rates == {}
    limited_model = plain([A], limits=LimitConfig(tokens_per_minute=9))
    workers.routers[:] = fleet(limited_model).routers
    workers.of_one.apply()
    assert workers.rates == {"m0": Rates(None, FleetRate(9, 9.0))}


async def test_a_worker_that_joins_gets_a_share_and_one_that_leaves_returns_it() -> None:
    workers = fleet(limited(10))
    await workers.beat("one:1")
    assert await workers.read() == {A: 10}
    await workers.beat("two:1")
    assert await workers.read() == {A: 5}
    workers.now += timedelta(seconds=FRESH_SECONDS + 0.1)
    await workers.beat("one:1")
    assert await workers.read() == {A: 10}


async def test_a_worker_has_no_share_before_others_can_know_of_it() -> None:
    workers = fleet(limited(10))
    await workers.beat("two:1")
    workers.of_one.apply()
    assert workers.shares == {A: 0}
    assert await workers.read() == {A: 0}
    await workers.beat("one:1")
    assert await workers.read() == {A: 5}


async def test_only_workers_that_poll_a_queue_of_the_backends_models_count() -> None:
    workers = fleet(limited(10), plain([B]))
    await workers.beat("one:1", queue=inference_queue("m0"))
    await workers.beat("two:1", queue=inference_queue("m1"))
    assert await workers.read() == {A: 10}
    workers.common_queue = DISPATCH_QUEUE
    await workers.beat("one:1", "two:1", queue=DISPATCH_QUEUE)
    assert await workers.read() == {A: 5}


async def test_the_queues_of_each_worker_are_read_once_however_many_backends_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = fleet(limited(10, A), limited(10, B), limited(10, C))
    await workers.beat("one:1", "two:1", queue=DISPATCH_QUEUE)
    reads = list[object]()

    def spy(reports: Iterable[Mapping[str, float]]) -> frozenset[str]:
        reads.append(reports)
        return polled_queues(reports)

    monkeypatch.setattr(limit_share_updater, "polled_queues", spy)
    assert await workers.read() == {A: 0, B: 0, C: 0}
    assert len(reads) == 2


async def test_live_workers_of_a_queue_are_counted() -> None:
    workers = fleet(plain([A]))
    await workers.beat("one:1", "two:1")
    await workers.beat("three:1", queue=inference_queue("m1"))
    await workers.read()
    queues = [inference_queue("m0"), inference_queue("m1"), DISPATCH_QUEUE]
    assert [workers.of_one.count_workers(queue) for queue in queues] == [2, 3, 0]
    workers.now += timedelta(seconds=FRESH_SECONDS + 1)
    await workers.read()
    assert workers.of_one.count_workers(inference_queue("m0")) == 0


async def test_workers_of_a_model_that_falls_back_on_the_backend_count() -> None:
    workers = fleet(plain([B]), limited(10))
    workers.routers[0].fallbacks = [workers.routers[1]]
    await workers.beat("one:1", queue=inference_queue("m0"))
    await workers.beat("two:1", queue=inference_queue("m1"))
    assert await workers.read() == {A: 5}


async def test_the_lowest_limit_of_a_url_counts_and_other_backends_have_none() -> None:
    workers = fleet(limited(10), limited(4), plain([A, B]), limited(6, C))
    await workers.beat("one:1")
    assert await workers.read() == {A: 4, C: 6}


async def test_the_limit_of_a_gateway_holds_from_its_first_model_on() -> None:
    workers = fleet()
    workers.gateways = [GatewayConfig(url=A, in_flight=6)]
    await workers.beat("one:1")
    assert await workers.read() == {A: 0}
    workers.routers.append(route_of(Clock(), ModelConfig(backends=[workers.gateways[0]])))
    assert await workers.read() == {A: 6}


async def test_a_changed_limit_is_divided_between_the_workers_known_so_far() -> None:
    workers = fleet(limited(10))
    await workers.beat("one:1", "two:1")
    await workers.read()
    [router] = workers.routers
    router.update(limited(4), [router.upstreams[0].backend], router.retries)
    workers.of_one.apply()
    assert workers.shares == {A: 2}
    router.update(plain([A]), [router.upstreams[0].backend], router.retries)
    workers.of_one.apply()
    assert workers.shares == {}


async def test_while_the_database_is_unavailable_the_share_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = fleet(limited(10))
    await workers.beat("one:1", "two:1")
    await workers.read()

    async def fail(max_age: timedelta) -> list[WorkerHeartbeat]:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(workers.database.workers, "heartbeats", fail)
    with pytest.raises(DatabaseUnavailable):
        await workers.of_one.refresh()
    workers.of_one.apply()
    assert workers.shares == {A: 5}


async def test_a_worker_reads_the_fleet_often_until_it_finds_itself_and_continues_through_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, waits, shares = fleet(limited(10)), list[float](), list[dict[str, int]]()
    heartbeats = workers.database.workers.heartbeats

    async def fail(max_age: timedelta) -> list[WorkerHeartbeat]:
        raise DatabaseUnavailable("gone")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        shares.append(workers.shares)
        if len(waits) == 1:
            await workers.beat("two:1")
        elif len(waits) == 2:
            await workers.beat("one:1")
        elif len(waits) == 3:
            monkeypatch.setattr(workers.database.workers, "heartbeats", fail)
        elif len(waits) == 4:
            monkeypatch.setattr(workers.database.workers, "heartbeats", heartbeats)
            await workers.beat("three:1", "four:1", "five:1")
        else:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await workers.of_one.run()
    assert waits == [0.25, 0.25, 2.0, 2.0, 2.0]
    assert shares == [{A: 0}, {A: 0}, {A: 5}, {A: 5}, {A: 2}]


async def interactive(workers: Fleet, in_flight: int, mean: float, process: str = "api:1") -> None:
    await workers.database.workers.report_interactive_load(process, [BackendLoad(A, in_flight, mean)])


async def test_workers_leave_room_for_interactive_calls_of_all_processes() -> None:
    workers = fleet(limited(32), limited(20, B))
    await workers.beat("one:1", "two:1")
    await interactive(workers, 3, 9.0)
    assert await workers.read() == {A: 11, B: 10}  # half of 32 less the mean of 9 and half its square root
    await interactive(workers, 20, 9.0)  # more than chance explains
    assert await workers.read() == {A: 8, B: 10}
    await interactive(workers, 6, 7.0, "api:2")
    assert await workers.read() == {A: 5, B: 10}


async def test_interactive_calls_use_a_part_of_a_models_rates_and_leave_a_tenth_to_batches() -> None:
    workers = fleet(plain([A], limits=LimitConfig(requests_per_minute=600, tokens_per_minute=9_000)))
    await workers.run_slices("m0", "one:1", "two:1")
    report = workers.database.workers.report_interactive_rates
    of_tenant = InteractiveRate(True, "m0", 500.0, 500.0)  # of a tenant with the same name
    await report("api:1", [InteractiveRate(False, "m0", 90.0, 1_000.0), of_tenant])
    await report("api:2", [InteractiveRate(False, "m0", 10.0, 0.0)])
    assert await workers.requests_per_minute("m0") == 250.0
    assert workers.rates == {"m0": Rates(FleetRate(600, 250.0), FleetRate(9_000, 4_000.0))}
    await report("api:1", [InteractiveRate(False, "m0", 599.0, 1_000_000.0)])
    assert await workers.requests_per_minute("m0") == 30.0
    assert workers.rates == {"m0": Rates(FleetRate(600, 30.0), FleetRate(9_000, 450.0))}
    workers.now += timedelta(seconds=5.1)
    await workers.run_slices("m0", "one:1", "two:1")
    assert await workers.requests_per_minute("m0") == 300.0  # reports of processes that ended do not count


@pytest.mark.parametrize(("in_flight", "left"), [(4, 1), (30, 3), (32, 4)])
async def test_interactive_calls_leave_a_tenth_of_the_limit_to_batches(in_flight: int, left: int) -> None:
    workers = fleet(limited(in_flight))
    await workers.beat("one:1")
    await interactive(workers, 50, 50.0)
    assert await workers.read() == {A: left}


async def test_a_worker_knows_if_interactive_calls_have_taken_its_part() -> None:
    workers = fleet(limited(4), limited(1, B))
    await workers.beat("a:1", "one:1")
    assert (await workers.read(), workers.of_one.is_used_up_by_interactive(A)) == ({A: 2, B: 0}, False)
    await interactive(workers, 50, 50.0)
    assert await workers.read() == {A: 0, B: 0}
    assert workers.of_one.is_used_up_by_interactive(A)
    assert not workers.of_one.is_used_up_by_interactive(B)  # too small for two workers without any call
    workers.now += timedelta(seconds=5.1)
    await workers.beat("a:1", "one:1")
    assert (await workers.read(), workers.of_one.is_used_up_by_interactive(A)) == ({A: 2, B: 0}, False)


async def test_the_room_ends_with_the_reports_of_the_process() -> None:
    workers = fleet(limited(32))
    await workers.beat("one:1")
    await interactive(workers, 10, 10.0)
    assert (await workers.read())[A] < 32
    workers.now += timedelta(seconds=5.1)
    await workers.beat("one:1")
    assert await workers.read() == {A: 32}


async def test_a_backend_that_serves_direct_callers_first_needs_no_room() -> None:
    workers = fleet(limited(32))
    vars(workers.routers[0].upstreams[0].backend.client)["serves_direct_first"] = True
    await workers.beat("one:1")
    await interactive(workers, 10, 10.0)
    assert await workers.read() == {A: 32}
