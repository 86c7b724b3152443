"""Two workers in one process with a fake backend in memory, for tests of rate limits."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.contracts.temporal_names import DISPATCH_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.execution import (
    ModelRun,
    ModelRunResult,
    SliceRequest,
    SliceResult,
)
from batchwright.contracts.terms import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.rules.planning.plan_format import PlanEntry, SliceRecord, pack_entry, pack_slice
from batchwright.rules.stored_objects import object_keys
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import DATA_CONVERTER
from batchwright.worker.task_queue_rate_limits import QueueRateLimit, RateLimitSync, TemporalRateLimits
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.activities.execution.fixture import BATCH, TENANT, ExecutionFixture, ok
from tests.fakes.memory_database import MemoryDatabase
from tests.fakes.storage import MemoryStorage

MODELS = ("a", "b", "c")
RUNS = "runs"  # the task queue of the workflows


class Turn(NamedTuple):
    queue: str
    model: str


class CountingExecution(Execution):
    def __init__(self, tools: WorkerContext, note: Callable[[Turn], None]) -> None:
        super().__init__(tools)
        self._note = note

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        self._note(Turn(activity.info().task_queue, request.model))
        return await super().run_slice(request)


class RatedFleet:
    """Two workers with a fake backend.

    `turns` has each run of a slice on a worker, and `sends` has the model of each request, both in order.
    """

    def __init__(self, address: str, **settings: object) -> None:
        self._address, self._settings = address, settings
        self.turns: list[Turn] = []
        self.sends: list[str] = []
        self._database, self._storage = MemoryDatabase(), MemoryStorage()
        self._keepers: list[RateLimitSync] = []
        self._limits: list[tuple[TemporalRateLimits, FleetRates]] = []

    @asynccontextmanager
    async def workers(self, number: int = 2) -> AsyncGenerator[Client]:
        """Context manager that runs `number` workers, and yields a Temporal client.

        The workers poll the queues of all models. The rate limits are set before the first worker polls.
        """
        async with AsyncExitStack() as stack:
            clients = [await self._connect() for _ in range(number)]
            tools = [self._tools(client) for client in clients]
            await self.follow()
            for client, each in zip(clients, tools, strict=True):
                for queue in (*map(inference_queue, MODELS), DISPATCH_QUEUE):
                    await stack.enter_async_context(self._worker(client, each, queue))
            await stack.enter_async_context(Worker(clients[0], task_queue=RUNS, workflows=[ModelRunWorkflow]))
            yield clients[0]

    async def change(self, model: str, rate: float | None) -> None:
        """Set the rate of a model as the API does, and apply it to Temporal as workers do regularly."""

        def anything(changes: list[RateChange]) -> None: ...

        await self._database.rates.change(model, rate, datetime.now(UTC), anything)
        await self.follow()

    async def follow(self) -> None:
        """Apply the rates to the task queues, and wait until Temporal reports them.

        For a moment, it may still report the old limits.
        """
        await asyncio.gather(*(keeper.sync() for keeper in self._keepers))
        for limits, rates in self._limits:
            for queue, pacing in rates.queues().items():
                while not _is_limited(await limits.get(queue), pacing):
                    await asyncio.sleep(0.02)

    async def run(self, client: Client, model: str, *, slices: int, lines: int) -> ModelRunResult:
        """Run the workflow of a model with `slices` slices of `lines` lines each. Return its result.

        The slices are planned as for a model without a rate limit.
        """
        await self._plan(model, slices, lines)
        run = ModelRun(
            batch_id=BATCH,
            tenant=TENANT,
            endpoint=Endpoint.CHAT_COMPLETIONS,
            ingest_prefix="p",
            model=model,
            safe_model=model,
            lines=slices * lines,
            slices=slices,
            deadline=datetime.now(UTC) + timedelta(hours=1),
        )
        return await client.execute_workflow(ModelRunWorkflow.run, run, id=model, task_queue=RUNS)

    async def _connect(self) -> Client:
        """Open and return a connection. The SDK allows one worker per task queue and connection."""
        return await Client.connect(self._address, data_converter=DATA_CONVERTER)

    def _tools(self, client: Client) -> WorkerContext:
        execution = ExecutionFixture(ok, **self._settings)
        execution.answer = self._answer
        execution.storage = self._storage
        execution.context.storage = self._storage
        rates = FleetRates(
            execution.settings,
            self._database.rates,
            lambda: frozenset(MODELS),
            unavailable=DatabaseUnavailable,
        )
        execution.context.rates = rates
        limits = TemporalRateLimits(client)
        self._limits.append((limits, rates))
        self._keepers.append(RateLimitSync(rates, limits, Metrics(), every_seconds=5))
        return execution.context

    def _worker(self, client: Client, tools: WorkerContext, queue: str) -> Worker:
        return Worker(
            client,
            task_queue=queue,
            activities=[CountingExecution(tools, self.turns.append).run_slice],
            max_concurrent_activities=8,
            max_heartbeat_throttle_interval=timedelta(seconds=1),
            default_heartbeat_throttle_interval=timedelta(seconds=1),
        )

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.sends.append(json.loads(request.content)["model"])
        return ok("")

    async def _plan(self, model: str, slices: int, lines: int) -> None:
        line = b'{"custom_id":"c","body":{"model":"%s","messages":[{"content":""}]}}\n' % model.encode()
        size, number = len(line), slices * lines
        entries = b"".join(pack_entry(PlanEntry(n * size, size, 0)) for n in range(number))
        table = b"".join(
            pack_slice(SliceRecord(n, n * lines, n * lines * size, lines, lines * size, lines))
            for n in range(slices)
        )
        await self._storage.put(object_keys.plan("p", model), entries)
        await self._storage.put(object_keys.shard("p", model), line * number)
        await self._storage.put(object_keys.slice_table("p", model), table)


def _is_limited(limit: QueueRateLimit | None, pacing: Pacing | None) -> bool:
    """Return True if the limit of the task queue is the one that `pacing` requires.

    If there is no pacing, return True if Batchwright has set no limit for the queue.
    """
    if pacing is None:
        return limit is None or not limit.is_ours
    return limit is not None and math.isclose(limit.turns_per_second, pacing.turns_per_second, rel_tol=1e-6)
