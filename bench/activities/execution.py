"""`python -m bench.activities.execution DIRECTORY URL IN_FLIGHT`: measures the sending of lines.

The program sends the lines of the file `input` in DIRECTORY to the backend at URL, without Temporal. Like a
worker, the program sends the lines in slices (parts of a batch). IN_FLIGHT is the maximum number of requests
in flight.
"""

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

from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.slice_state.lease import Heartbeat, HeartbeatReply
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.backend_job_callbacks import CallbackWatch
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.daily_budgets import DailyBudgets
from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.activities.services.send_authorization import CachedPermissions
from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.contracts.temporal_payloads.execution import ModelRun, SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.inference.client_pool import ClientPool
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.inference.limits.tenant_and_model_limits import TenantSettings
from batchwright.inference.registry.backend_registry import retry_policy_of
from batchwright.inference.router import ModelRouter
from batchwright.inference.upstream import Backend
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings, load
from batchwright.storage.local import LocalStorage
from batchwright.telemetry.metrics import Metrics
from bench.activities.harness import input_row, order, print_result
from bench.activities.ingestion import ingest
from bench.inputs import MODELS
from tests.fakes.memory_database import MemoryDatabase

_SLICES_AT_ONCE = 4  # slices of one model that are sent at once


class SentSlices(msgspec.Struct, frozen=True):
    """Duration and CPU time of sending all lines.

    The time for Temporal, for reading the input and for writing the output files is not included.
    """

    lines: int
    seconds: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.lines * 1e6


class _SingleBackendRouter:
    """A substitute for the worker's routers, which choose a backend for each request.

    It sends the requests of every model to the same backend.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        config = ModelConfig(backends=[GatewayConfig(url=url)])
        self.clients = ClientPool(settings)
        self._routes = {name: ModelRouter(name, retry_policy_of(settings, config), 5) for name in MODELS}
        backend = Backend(url, self.clients.client_for(config.backends[0]))
        for route in self._routes.values():
            route.update(config, [backend], route.retries)

    def router_for(self, model: str) -> ModelRouter | None:
        return self._routes.get(model)


def _beat() -> Heartbeat:
    async def beat(details: SliceResult) -> HeartbeatReply:
        return HeartbeatReply.OK

    return beat


async def _is_never_cancelled(tenant: str, batch_id: str) -> bool:
    return False


async def _ignore_reason(batch_id: str, reason: WaitingReason) -> None:
    """Ignore the reason why a batch waits, because the benchmark shows no waiting reasons."""


async def send(directory: Path, url: str, result: IngestResult, in_flight: int) -> SentSlices:
    settings = load(storage_dir=directory, global_in_flight=in_flight, model_in_flight=in_flight)
    routes, database = _SingleBackendRouter(settings, url), MemoryDatabase()
    budgets = DailyBudgets(database.quotas, database.budget_groups, settings.quotas.budget)
    costs = BatchCosts(database.progress)
    permissions = CachedPermissions(database.quotas, budgets, costs, timedelta(days=1))
    tools = WorkerContext(
        storage=LocalStorage(directory),
        routers=routes,
        progress=ProgressReporter(database.progress),
        metrics=Metrics(CollectorRegistry()),
        settings=settings,
        waiting_reasons=WaitingReasonPublisher(_ignore_reason, database.waiting),
        costs=costs,
        heartbeat=_beat,
        rates=FleetRates(settings, database.rates, lambda: frozenset(MODELS), unavailable=OSError),
        tenant_settings=TenantSettings(),
        permissions=permissions,
        callbacks=CallbackWatch(database.callbacks, settings),
        calls=database.calls,
        is_cancelled=_is_never_cancelled,
        missing_dependencies=str,
        quarantine_lock=asyncio.Lock(),
    )
    watching = asyncio.create_task(permissions.run())
    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(_slot(tools, queue) for queue in _queues(result) for _ in range(_SLICES_AT_ONCE)))
    sent = SentSlices(result.total, time.perf_counter() - started, time.process_time() - cpu)
    watching.cancel()
    await routes.clients.aclose()
    return sent


def _queues(result: IngestResult) -> list[deque[SliceRequest]]:
    """Return one queue for each model. A queue contains a `SliceRequest` for each slice of the model's lines.

    A `SliceRequest` is the argument of the activity that sends a slice (part of a batch).
    """
    return [
        deque(
            SliceRequest.of(ModelRun.of(order(), share, result.ingest_prefix), number)
            for number in range(share.slices)
        )
        for share in result.models
    ]


async def _slot(tools: WorkerContext, queue: deque[SliceRequest]) -> None:
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
    print_result(await send(directory, url, result, in_flight))
    shutil.rmtree(directory / object_keys.results_root(order().tenant, order().batch_id))


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
