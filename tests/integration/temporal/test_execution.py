"""Slices with a real Temporal server: acknowledged heartbeats, cancels, lost leases, and
interrupted slices.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

import httpx
import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from batchwright.activities.execution.activity import Execution
from batchwright.activities.execution.slice_state.lease import Heartbeat, HeartbeatReply, temporal_heartbeat
from batchwright.contracts.temporal_names import inference_queue
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.execution import ModelRun, ModelRunResult, SliceResult
from batchwright.contracts.terms import Endpoint
from batchwright.temporal import DATA_CONVERTER
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.activities.execution.fixture import (
    BATCH,
    MODEL,
    TENANT,
    ExecutionFixture,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
)
from tests.integration.temporal.clusters import started

pytestmark = pytest.mark.integration
HELD = "3"


@pytest.fixture
async def temporal() -> AsyncGenerator[Client]:
    async with await started(data_converter=DATA_CONVERTER) as environment:
        yield environment.client


class Hears(Enum):
    """The source from which an attempt learns that it must end: replies to its own heartbeats, the SDK, or
    both.
    """

    BOTH = auto()
    BEATS = auto()
    SDK = auto()


class Observed(ExecutionFixture):
    """An execution fixture with a real Temporal server.

    `words` contains the replies to the fixture's heartbeats. The backend answers the line `HELD` only when
    `release` is set.
    """

    def __init__(self, client: Client, hears: Hears = Hears.BOTH) -> None:
        super().__init__(ok)
        self._hears = hears
        self.words: list[HeartbeatReply] = []
        self.release = asyncio.Event()
        self.answer = self._held
        self._client = client
        self.context.heartbeat = self._beats

    def _beats(self) -> Heartbeat:
        real = temporal_heartbeat(self._client)

        async def beat(details: SliceResult) -> HeartbeatReply:
            word = await real(details)
            self.words.append(word)
            return HeartbeatReply.OK if self._hears is Hears.SDK else word

        return beat

    async def _held(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == HELD:
            await self.release.wait()
        return ok(content_of(sent))

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[Worker]:
        throttle = timedelta(minutes=1 if self._hears is Hears.BEATS else 1 / 60)
        async with (
            Worker(self._client, task_queue="orders", workflows=[ModelRunWorkflow]),
            Worker(
                self._client,
                task_queue=inference_queue(MODEL),
                activities=[Execution(self.context).run_slice],
                max_heartbeat_throttle_interval=throttle,
                default_heartbeat_throttle_interval=throttle,
                graceful_shutdown_timeout=timedelta(minutes=2),
            ) as worker,
        ):
            yield worker
            self.release.set()

    def run_of(self, lines: int, **policy: float) -> ModelRun:
        return ModelRun(
            batch_id=BATCH,
            tenant=TENANT,
            endpoint=Endpoint.CHAT_COMPLETIONS,
            ingest_prefix="p",
            model=MODEL,
            safe_model=MODEL,
            lines=lines,
            slices=1,
            deadline=datetime.now(UTC) + timedelta(hours=1),
            policy=BatchPolicy(heartbeat_timeout_seconds=120).model_copy(update=policy),
        )


async def until_settled(execution: ExecutionFixture, lines: int) -> None:
    while len(await execution.settled()) < lines:
        await asyncio.sleep(0.05)


async def test_a_run_of_several_turns_sends_every_line_once(temporal: Client) -> None:
    execution = Observed(temporal)
    execution.release.set()
    await plan_slice(execution.storage, [line_of(n) for n in range(3)])
    async with execution.worker():
        run = execution.run_of(3, slice_seconds=0)
        result = await temporal.execute_workflow(ModelRunWorkflow.run, run, id="run", task_queue="orders")
    assert result == ModelRunResult(finished=True, slices_done=1, completed=3)
    assert execution.sent == ["0", "1", "2"]


async def test_a_stop_reaches_a_running_slice_with_its_next_heartbeat(temporal: Client) -> None:
    execution = Observed(temporal)
    await plan_slice(execution.storage, [line_of(n) for n in range(6)])
    async with execution.worker():
        run = execution.run_of(6, cancel_grace_seconds=0)
        handle = await temporal.start_workflow(ModelRunWorkflow.run, run, id="run", task_queue="orders")
        await eventually(lambda: len(execution.sent) == 6)
        await handle.signal(ModelRunWorkflow.stop)
        assert await handle.result() == ModelRunResult(finished=False)
    assert len(await execution.settled()) == 5


# Where the acknowledged beat brings the news first, the SDK cancels an activity that has ended, and warns.
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
@pytest.mark.parametrize("hears", Hears)
async def test_an_attempt_whose_workflow_was_terminated_sends_and_stores_nothing_more(
    temporal: Client, hears: Hears
) -> None:
    execution = Observed(temporal, hears)
    await plan_slice(execution.storage, [line_of(n) for n in range(6)])
    async with execution.worker():
        handle = await temporal.start_workflow(
            ModelRunWorkflow.run, execution.run_of(6), id="run", task_queue="orders"
        )
        await eventually(lambda: len(execution.sent) == 6 and HeartbeatReply.OK in execution.words)
        await until_settled(execution, 5)
        before = dict(execution.storage.objects), list(execution.progress.upserts)
        await handle.terminate()
        await eventually(lambda: execution.context.permits.used == 0)
        execution.release.set()
    assert (execution.storage.objects, execution.progress.upserts) == before
    assert len(execution.sent) == 6
    assert HeartbeatReply.LEASE_LOST not in execution.words[:-1] or hears is Hears.SDK


async def test_a_worker_that_shuts_down_returns_its_slice_to_the_next(temporal: Client) -> None:
    first, lines = Observed(temporal), [line_of(n) for n in range(6)]
    await plan_slice(first.storage, lines)
    async with first.worker() as worker:
        handle = await temporal.start_workflow(
            ModelRunWorkflow.run, first.run_of(6), id="run", task_queue="orders"
        )
        await eventually(lambda: len(first.sent) == 6)
        leaving = asyncio.create_task(worker.shutdown())
        await eventually(lambda: first.context.permits.used == 1)
        first.release.set()
        await leaving
    second = Observed(temporal)
    second.storage.objects = first.storage.objects
    async with second.worker():
        assert await handle.result() == ModelRunResult(finished=True, slices_done=1, completed=6)
    assert second.sent == []
