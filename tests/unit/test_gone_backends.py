"""What is left of backends that are gone from the registry, counted: clients, sockets, tasks, series."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from weakref import WeakSet

import pytest

from batchwright.contracts.openai import Endpoint
from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.adaptive import BackendLimits, Policy
from batchwright.inference.backends import Registry
from batchwright.inference.clients import Clients
from batchwright.inference.engine import Target
from batchwright.inference.limits import Permits
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Route, Sends
from batchwright.inference.senders import Senders
from batchwright.rules.retries import Category
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.traffic import TrafficMeter
from tests.fakes.database import MemoryDatabase
from tests.fakes.waiters import Asked
from tests.unit.sockets import HEAD, read_request, served
from worker.backends import GoneSeries, keep_to, show_backends

ANSWER = b'{"object":"list","data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":1}}'
KEPT = HEAD + b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
BODY = b'{"model":"m","input":"x"}'
BOTH = pytest.mark.parametrize("engine", ["socket", "httpx"])


class Server:
    """Keeps connections open; answers when it is let."""

    def __init__(self) -> None:
        self.open = self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                await read_request(reader)
                self.asked += 1
                await self.answers.wait()
                writer.write(KEPT)
                await writer.drain()
        finally:
            self.open -= 1


class Worker:
    """What a worker has of backends; `made`: its clients and what groups lines for them, while they live."""

    def __init__(self, target: Target, engine: str) -> None:
        self.url = f"http://{target.authority.decode()}"
        settings = load(
            http_engine=engine, models={"m": {"inputs_per_request": 2}}, default_model="", model_in_flight=5
        )
        self._database, self.clients, self.metrics = MemoryDatabase(), Clients(settings), Metrics()
        tables = (self._database.models, self._database.model_changes)
        self.registry = Registry(settings, *tables, self.clients, unavailable=DatabaseUnavailable)
        self._senders, self.traffic = Senders(settings, self.metrics), TrafficMeter(self.metrics)
        backends = BackendLimits(Policy(), lambda model: self._route(model).urls, self.metrics)
        self.permits = Permits(total=10, per_model=5, backends=backends)
        self.made: WeakSet[object] = WeakSet()
        gone = GoneSeries(self.metrics)
        self.registry.on_look += [
            lambda: show_backends(self.registry, self.metrics),
            lambda: keep_to(self.registry, gone, self._forget),
        ]

    async def register(self, model: str, **how: object) -> None:
        config = BackendConfig.model_validate({"url": self.url, **how})
        models = ModelConfig(backends=[config])
        await self._database.model_changes.put(model, models, datetime.now(UTC), lambda rows: None)
        await self.registry.look()

    async def take_away(self, model: str) -> None:
        await self._database.model_changes.revert(model, lambda rows: None)
        await self.registry.look()

    async def ask(self, model: str) -> Outcome:
        """As a slice does."""
        route = self._route(model)
        permit, sending = Asked(self.permits, model).permit, route.begin()
        assert sending is not None
        backend = sending.lane.backend
        permit.place(backend.url)
        sender: Sends = self._senders.of(backend, "m", Endpoint.EMBEDDINGS)
        self.made.update([backend.client, sender])
        try:
            outcome = await route.send(sending, sender, Endpoint.EMBEDDINGS, BODY, "batch_req_1")
            permit.tell(outcome)
        finally:
            sending.end()
            permit.release()
        self.traffic.ended(model, backend.url, status=200, category=Category.NONE, seconds=0.1)
        return outcome

    def alive(self) -> int:
        gc.collect()
        return len(self.made)

    def series(self) -> int:
        return sum(len(family.samples) for family in self.metrics.registry.collect())

    def _route(self, model: str) -> Route:
        route = self.registry.route_of(model)
        assert route is not None
        return route

    def _forget(self, models: Collection[str], urls: Collection[str]) -> None:
        self.permits.keep(models, urls)
        self.traffic.keep(models, urls)


@asynccontextmanager
async def house(engine: str = "socket") -> AsyncGenerator[tuple[Server, Worker]]:
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
        while not holds():  # noqa: ASYNC110 - nobody tells of sockets and of garbage
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_registry_changed_a_thousand_times_leaves_nothing_behind() -> None:
    async with house() as (_, worker):
        await worker.register("stays")
        assert (await worker.ask("stays")).status == 200
        before, tasks, half_way = descriptors(), len(asyncio.all_tasks()), 0
        for number in range(500):  # two changes each
            model = f"m{number}"
            await worker.register(model, url=f"{worker.url}/{number}", connect_timeout=1 + number)
            if number % 5 == 0:
                assert (await worker.ask(model)).status == 200
            await worker.take_away(model)
            if number == 249:
                half_way = worker.series()
        await until(lambda: worker.alive() == 2)  # of the model that stays
        await until(lambda: descriptors() <= before)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert [lane.requests for lane in worker.traffic.told({})] == [100, 1]
        assert worker.series() <= half_way


@BOTH
async def test_what_is_under_way_at_a_backend_that_goes_is_answered_and_then_nothing_is_kept(
    engine: str,
) -> None:
    async with house(engine) as (server, worker):
        await worker.register("m")
        assert (await worker.ask("m")).status == 200
        server.answers.clear()
        asked = asyncio.create_task(worker.ask("m"))
        await until(lambda: server.asked == 2)
        await worker.take_away("m")
        assert server.open == 1
        server.answers.set()
        assert (await asked).status == 200
        del asked
        await until(lambda: server.open == 0)
        await worker.registry.look()
        await until(lambda: worker.alive() == 0)


@BOTH
async def test_a_backend_that_comes_back_is_asked_on_connections_that_are_kept_again(engine: str) -> None:
    async with house(engine) as (server, worker):
        for _ in range(3):
            await worker.register("m")
            for _ in range(3):
                assert (await worker.ask("m")).status == 200
            assert server.open == 1
            await worker.take_away("m")
            await until(lambda: server.open == 0)


async def test_series_of_what_is_gone_go_a_while_later_and_stay_of_what_comes_back() -> None:
    now = 0.0
    metrics = Metrics()
    gone = GoneSeries(metrics, lambda: now)
    for model in ("a", "b"):
        metrics.requests.labels(model, "http://x", "200").inc()
    gone.look("model", ["a", "b"])
    gone.look("model", [])
    now = 599.0
    gone.look("model", ["b"])
    assert shown(metrics) == {"a", "b"}
    now = 601.0
    gone.look("model", ["b"])
    assert shown(metrics) == {"b"}


def shown(metrics: Metrics) -> set[str]:
    return {sample.labels["model"] for family in metrics.requests.collect() for sample in family.samples}


def test_what_was_sent_to_those_that_are_gone_stays_in_the_sums() -> None:
    meter = TrafficMeter(Metrics())
    for model, backend in (("m", "a"), ("m", "b"), ("n", "a")):
        meter.ended(model, backend, status=500, category=Category.UPSTREAM_5XX, seconds=1.0)
    meter.keep(["m"], ["a"])
    told = {(lane.model, lane.backend): (lane.requests, lane.errors, lane.seconds) for lane in meter.told({})}
    assert told == {("m", "a"): (1, 1, 1.0), ("m", "other"): (1, 1, 1.0), ("other", "other"): (1, 1, 1.0)}
    meter.keep([], [])
    assert [lane.requests for lane in meter.told({})] == [3]
