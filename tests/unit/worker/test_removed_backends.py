"""Backends that are removed from the registry leave no clients, sockets, tasks or metric series behind."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from weakref import WeakSet

import pytest

from batchwright.activities.batch_end.end_metrics import count_missing_lines
from batchwright.contracts.errors import LineCode
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.backend_client import RequestSender
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter
from batchwright.inference.registry.backend_registry import BackendRegistry
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import ModelRouter
from batchwright.inference.sender_choice import MicrobatchSenders
from batchwright.inference.transport.base import TargetUrl
from batchwright.rules.dispatch.retry_policy import Category
from batchwright.settings import load
from batchwright.telemetry.backend_traffic import BackendTraffic
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.backend_metrics import StaleSeriesRemover, forget_removed, update_backend_gauges
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.permit_requests import PermitWaiter
from tests.fakes.raw_servers import HEAD, read_request, served

ANSWER = b'{"object":"list","data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":1}}'
KEEP_ALIVE = HEAD + b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
BODY = b'{"model":"m","input":"x"}'
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Server:
    """A server that keeps connections open. It answers when the test allows it."""

    def __init__(self) -> None:
        self.open = self.requests = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                await read_request(reader)
                self.requests += 1
                await self.answers.wait()
                writer.write(KEEP_ALIVE)
                await writer.drain()
        finally:
            self.open -= 1


class Worker:
    """The backends of a worker. `created` has its live clients and microbatch senders."""

    def __init__(self, target: TargetUrl, engine: str) -> None:
        self.url = f"http://{target.authority.decode()}"
        settings = load(
            http_engine=engine, models={"m": {"inputs_per_request": 2}}, default_model="", model_in_flight=5
        )
        self._database, self.clients, self.metrics = MemoryDatabase(), ClientPool(settings), Metrics()
        tables = (self._database.models, self._database.model_changes)
        self.registry = BackendRegistry(settings, *tables, self.clients, unavailable=DatabaseUnavailable)
        self._senders, self.traffic = MicrobatchSenders(settings, self.metrics), BackendTraffic(self.metrics)
        backends = BackendLimits(AdaptiveLimitPolicy(), lambda model: self._route(model).urls, self.metrics)
        self.permits = ConcurrencyLimiter(total=10, model_limit=lambda _: 5, backends=backends)
        self.created: WeakSet[object] = WeakSet()
        gone = StaleSeriesRemover(self.metrics)
        self.registry.on_refresh += [
            lambda: update_backend_gauges(self.registry, self.metrics),
            lambda: forget_removed(self.registry, self.metrics, gone, self._forget),
        ]

    async def register(self, model: str, **how: object) -> None:
        config = BackendConfig.model_validate({"url": self.url, **how})
        models = ModelConfig(backends=[config])
        await self._database.model_changes.put(model, models, datetime.now(UTC), lambda rows: None)
        await self.registry.refresh_changes()

    async def remove_model(self, model: str) -> None:
        await self._database.model_changes.revert(model, lambda rows: None)
        await self.registry.refresh_changes()

    async def ask(self, model: str) -> Outcome:
        """Send one request as a slice does, and return its outcome."""
        route = self._route(model)
        permit, sending = PermitWaiter(self.permits, model).permit, route.select()
        assert sending is not None
        backend = sending.upstream.backend
        permit.place(backend.url)
        sender: RequestSender = self._senders.sender_for(backend, "m", Endpoint.EMBEDDINGS)
        self.created.update([backend.client, sender])
        try:
            outcome = await route.send(sending, sender, Endpoint.EMBEDDINGS, BODY, "batch_req_1")
            permit.record_outcome(outcome)
        finally:
            sending.end()
            permit.release()
        self.traffic.record(model, backend.url, [0.1], status=200, category=Category.NONE)
        return outcome

    def alive(self) -> int:
        gc.collect()
        return len(self.created)

    def series(self) -> int:
        return sum(len(family.samples) for family in self.metrics.registry.collect())

    def _route(self, model: str) -> ModelRouter:
        route = self.registry.router_for(model)
        assert route is not None
        return route

    def _forget(self, models: Collection[str], urls: Collection[str]) -> None:
        self.permits.retain_only(models, urls)
        self.traffic.retain(models, urls)


@asynccontextmanager
async def server_and_worker(engine: str = "socket") -> AsyncGenerator[tuple[Server, Worker]]:
    server = Server()
    async with served(server.serve) as target:
        worker = Worker(target, engine)
        try:
            yield server, worker
        finally:
            await worker.clients.aclose()
            await until(lambda: server.open == 0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not holds():
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_registry_changed_a_thousand_times_leaves_nothing_behind() -> None:
    async with server_and_worker() as (_, worker):
        await worker.register("stays")
        assert (await worker.ask("stays")).status == 200
        before, tasks, half_way = descriptors(), len(asyncio.all_tasks()), 0
        for number in range(500):  # two changes in each round
            model = f"m{number}"
            await worker.register(model, url=f"{worker.url}/{number}", connect_timeout=1 + number)
            if number % 5 == 0:
                assert (await worker.ask(model)).status == 200
            await worker.remove_model(model)
            if number == 249:
                half_way = worker.series()
        await until(lambda: worker.alive() == 2)  # those of the remaining model
        await until(lambda: descriptors() <= before)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert [lane.requests for lane in worker.traffic.snapshot({})] == [100, 1]
        assert worker.series() <= half_way


@BOTH
async def test_requests_in_flight_at_a_removed_backend_are_answered_and_then_its_connections_closed(
    engine: str,
) -> None:
    async with server_and_worker(engine) as (server, worker):
        await worker.register("m")
        assert (await worker.ask("m")).status == 200
        server.answers.clear()
        request = asyncio.create_task(worker.ask("m"))
        await until(lambda: server.requests == 2)
        await worker.remove_model("m")
        assert server.open == 1
        server.answers.set()
        assert (await request).status == 200
        del request
        await until(lambda: server.open == 0)
        await worker.registry.refresh_changes()
        await until(lambda: worker.alive() == 0)


@BOTH
async def test_a_backend_that_returns_uses_idle_connections_again(engine: str) -> None:
    async with server_and_worker(engine) as (server, worker):
        for _ in range(3):
            await worker.register("m")
            for _ in range(3):
                assert (await worker.ask("m")).status == 200
            assert server.open == 1
            await worker.remove_model("m")
            await until(lambda: server.open == 0)


async def test_series_of_removed_backends_are_dropped_later_unless_they_return() -> None:
    now = 0.0
    metrics = Metrics()
    gone = StaleSeriesRemover(metrics, lambda: now)
    for model in ("a", "b"):
        metrics.requests.labels(model, "http://x", "200").inc()
    gone.update("model", ["a", "b"])
    gone.update("model", [])
    now = 599.0
    gone.update("model", ["b"])
    assert shown(metrics) == {"a", "b"}
    now = 601.0
    gone.update("model", ["b"])
    assert shown(metrics) == {"b"}


def shown(metrics: Metrics) -> set[str]:
    return {sample.labels["model"] for family in metrics.requests.collect() for sample in family.samples}


async def test_series_of_unlisted_models_are_dropped_later_unless_a_batch_needs_them() -> None:
    now, metrics, database = 0.0, Metrics(), MemoryDatabase()
    settings = load(backends=["http://127.0.0.1:1"], any_model=True)
    clients = ClientPool(settings)
    tables = (database.models, database.model_changes)
    registry = BackendRegistry(settings, *tables, clients, unavailable=DatabaseUnavailable)
    gone = StaleSeriesRemover(metrics, lambda: now)
    registry.on_refresh.append(lambda: forget_removed(registry, metrics, gone, lambda models, urls: None))
    await registry.refresh_changes()
    lines = {f"m{number}": 1 for number in range(1000)}
    count_missing_lines(metrics, LineCode.BATCH_EXPIRED, lines)
    metrics.models.required = frozenset({"m7"})
    for at in (1.0, 602.0):
        now = at
        await registry.refresh_changes()
    counted = request_errors(metrics)
    assert counted == {"m7": 1, "other": 900}
    metrics.models.required = frozenset()
    for at in (603.0, 1204.0):
        now = at
        await registry.refresh_changes()
    assert set(request_errors(metrics)) == {"other"}
    metrics.request_errors.labels("m500").inc()
    assert set(request_errors(metrics)) == {"other", "m500"}
    await clients.aclose()


def request_errors(metrics: Metrics) -> dict[str, float]:
    [family] = metrics.request_errors.collect()
    return {sample.labels["model"]: sample.value for sample in family.samples}


def test_totals_include_requests_to_removed_backends() -> None:
    meter = BackendTraffic(Metrics())
    for model, backend in (("m", "a"), ("m", "b"), ("n", "a")):
        meter.record(model, backend, [1.0], status=500, category=Category.UPSTREAM_5XX)
    meter.retain(["m"], ["a"])
    series = {
        (lane.model, lane.backend): (lane.requests, lane.errors, lane.seconds) for lane in meter.snapshot({})
    }
    assert series == {("m", "a"): (1, 1, 1.0), ("m", "other"): (1, 1, 1.0), ("other", "other"): (1, 1, 1.0)}
    meter.retain([], [])
    assert [lane.requests for lane in meter.snapshot({})] == [3]
