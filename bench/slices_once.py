"""`python -m bench.slices_once DIRECTORY URL IN_FLIGHT`: sends all slices of DIRECTORY's input to URL."""

import asyncio
import dataclasses
import gc
import shutil
import sys
import time
from collections import deque
from datetime import timedelta
from pathlib import Path

import msgspec
import uvloop
from prometheus_client import CollectorRegistry
from temporalio.testing import ActivityEnvironment

from activities.execution import Execution
from activities.slices.budgets import TokenBudgets
from activities.slices.ownership import Beat, Word
from activities.slices.permissions import KnownPermissions
from activities.slices.progress import ProgressReporter
from activities.slices.tools import Tools
from activities.slices.waiting import WaitingSignals
from batchwright.contracts.batch import WaitingReason
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.inference.backends import retries_of
from batchwright.inference.clients import Clients
from batchwright.inference.rates import FleetRates
from batchwright.inference.routes import Backend, Route
from batchwright.rules import keys
from batchwright.settings import Settings, load
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from bench.activity import input_row, order, say
from bench.ingest_once import ingest
from bench.inputs import MODELS
from tests.fakes.database import MemoryDatabase


class Sent(msgspec.Struct, frozen=True):
    """What a worker's slices took; without Temporal, ingestion and finalization."""

    lines: int
    seconds: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.lines * 1e6


class _Routes:
    """Every model at the one backend."""

    def __init__(self, settings: Settings, url: str) -> None:
        config = ModelConfig(backends=[GatewayConfig(url=url)])
        self.clients = Clients(settings)
        self._routes = {name: Route(name, retries_of(settings, config), 5) for name in MODELS}
        backend = Backend(url, self.clients.of(config.backends[0]))
        for route in self._routes.values():
            route.follow(config, [backend], route.retries)

    def route_of(self, model: str) -> Route | None:
        return self._routes.get(model)


def _beat() -> Beat:
    async def beat(details: SliceResult) -> Word:
        return Word.GO_ON

    return beat


async def _nobody(batch_id: str, reason: WaitingReason) -> None:
    """Told of what batches wait for."""


async def send(directory: Path, url: str, result: IngestResult, in_flight: int) -> Sent:
    settings = load(storage_dir=directory, global_in_flight=in_flight, model_in_flight=in_flight)
    routes, database = _Routes(settings, url), MemoryDatabase()
    budgets = TokenBudgets(database.quotas, settings.quotas.tokens_per_day)
    permissions = KnownPermissions(database.quotas, budgets, timedelta(days=1))
    tools = Tools(
        storage=LocalStorage(directory),
        backends=routes,
        progress=ProgressReporter(database.progress),
        metrics=Metrics(CollectorRegistry()),
        settings=settings,
        waiting=WaitingSignals(_nobody, database.waiting),
        beat=_beat,
        rates=FleetRates(settings, database.rates, lambda: frozenset(MODELS), unavailable=OSError),
        permissions=permissions,
    )
    watching = asyncio.create_task(permissions.run())
    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(
        *(_slot(tools, queue) for queue in _queues(result) for _ in range(settings.slots_per_model))
    )
    sent = Sent(result.total, time.perf_counter() - started, time.process_time() - cpu)
    watching.cancel()
    await routes.clients.aclose()
    return sent


def _queues(result: IngestResult) -> list[deque[SliceRequest]]:
    """The slices of each model, as its queue hands them out."""
    return [
        deque(
            SliceRequest(
                batch_id=order().batch_id,
                tenant=order().tenant,
                endpoint=order().endpoint,
                prefix=result.prefix,
                model=share.model,
                safe=share.safe,
                number=number,
                closes_at=order().expires_at,
            )
            for number in range(share.slices)
        )
        for share in result.models
    ]


async def _slot(tools: Tools, queue: deque[SliceRequest]) -> None:
    execution = Execution(tools)
    while queue:
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, heartbeat_timeout=timedelta(seconds=30))
        result: SliceResult = await environment.run(execution.run_slice, queue.popleft())
        if not result.finished:
            raise SystemExit(f"a slice ended as {result}")


async def _main(directory: Path, url: str, in_flight: int) -> None:
    database = MemoryDatabase()
    await database.files.insert(input_row((directory / "input").stat().st_size))
    result, _ = await ingest(directory, "prefix", database)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    say(await send(directory, url, result, in_flight))
    shutil.rmtree(directory / keys.results_root(order().tenant, order().batch_id))


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
