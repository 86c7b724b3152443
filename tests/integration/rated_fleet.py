"""Two workers of a fleet in one process, over a backend in memory; every send and every turn is noted."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.execution import Execution
from activities.slices.tools import Tools
from batchwright.contracts.execution import ModelRun, ModelRunResult, SliceRequest, SliceResult
from batchwright.contracts.names import DISPATCH_QUEUE, inference_queue
from batchwright.contracts.openai import Endpoint
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import RateChange
from batchwright.inference.rates import FleetRates
from batchwright.rules import keys
from batchwright.rules.plan import PlanEntry, SliceRecord, pack_entry, pack_slice
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal import DATA_CONVERTER
from tests.activities.execution_house import BATCH, TENANT, House, ok
from tests.fakes.database import MemoryDatabase
from tests.fakes.storage import MemoryStorage
from worker.rates import RateKeeper, ServerLimits
from workflows.model_run import ModelRunWorkflow

MODELS = ("a", "b", "c")
RUNS = "runs"  # the task queue of the workflows


class Turn(NamedTuple):
    queue: str
    model: str


class Counted(Execution):
    def __init__(self, tools: Tools, note: Callable[[Turn], None]) -> None:
        super().__init__(tools)
        self._note = note

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        self._note(Turn(activity.info().task_queue, request.model))
        return await super().run_slice(request)


class RatedFleet:
    """`turns` and `sends` (the models asked), in order; `slice_lines` bounds a turn's sends."""

    def __init__(self, address: str, **settings: object) -> None:
        self._address, self._settings = address, settings
        self.turns: list[Turn] = []
        self.sends: list[str] = []
        self._database, self._storage = MemoryDatabase(), MemoryStorage()
        self._keepers: list[RateKeeper] = []

    @asynccontextmanager
    async def workers(self, number: int = 2) -> AsyncGenerator[Client]:
        """All of them poll every queue; the limits are set before the first does."""
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
        """As the API does it, and then what each worker does every few seconds."""

        def anything(changes: list[RateChange]) -> None: ...

        await self._database.rates.change(model, rate, datetime.now(UTC), anything)
        await self.follow()

    async def follow(self) -> None:
        await asyncio.gather(*(keeper.keep() for keeper in self._keepers))

    async def run(self, client: Client, model: str, *, slices: int, lines: int) -> ModelRunResult:
        """A model run of `slices` with `lines` each, planned as without any rate."""
        await self._plan(model, slices, lines)
        run = ModelRun(
            batch_id=BATCH,
            tenant=TENANT,
            endpoint=Endpoint.CHAT_COMPLETIONS,
            prefix="p",
            model=model,
            safe=model,
            lines=slices * lines,
            slices=slices,
            closes_at=datetime.now(UTC) + timedelta(hours=1),
        )
        return await client.execute_workflow(ModelRunWorkflow.run, run, id=model, task_queue=RUNS)

    async def _connect(self) -> Client:
        """A connection for each: the SDK allows one worker a queue on one."""
        return await Client.connect(self._address, data_converter=DATA_CONVERTER)

    def _tools(self, client: Client) -> Tools:
        house = House(ok, **self._settings)
        house.answer = self._answer
        house.storage = self._storage
        house.tools.storage = self._storage
        rates = FleetRates(
            house.settings,
            self._database.rates,
            lambda: frozenset(MODELS),
            unavailable=DatabaseUnavailable,
        )
        house.tools.rates = rates
        self._keepers.append(RateKeeper(rates, ServerLimits(client), Metrics(), every_seconds=5))
        return house.tools

    def _worker(self, client: Client, tools: Tools, queue: str) -> Worker:
        return Worker(
            client,
            task_queue=queue,
            activities=[Counted(tools, self.turns.append).run_slice],
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
        await self._storage.put(keys.plan("p", model), entries)
        await self._storage.put(keys.shard("p", model), line * number)
        await self._storage.put(keys.slice_table("p", model), table)
