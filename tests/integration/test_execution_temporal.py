"""Slices under a real Temporal server: acknowledged beats, cancels, lost ownership, turns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

import httpx
import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities.execution import Execution
from activities.slices.ownership import Beat, Word, temporal_beat
from batchwright.contracts.batch import BatchPolicy
from batchwright.contracts.execution import ModelRun, ModelRunResult, SliceResult
from batchwright.contracts.names import inference_queue
from batchwright.contracts.openai import Endpoint
from batchwright.temporal import DATA_CONVERTER
from tests.activities.execution_house import (
    BATCH,
    MODEL,
    TENANT,
    House,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
)
from tests.integration.clusters import started
from workflows.model_run import ModelRunWorkflow

pytestmark = pytest.mark.integration
HELD = "3"


@pytest.fixture
async def temporal() -> AsyncGenerator[Client]:
    async with await started(data_converter=DATA_CONVERTER) as environment:
        yield environment.client


class Hears(Enum):
    """Through what an attempt learns of its end: its acknowledged beats, or the SDK's heartbeats."""

    BOTH = auto()
    BEATS = auto()
    SDK = auto()


class Observed(House):
    """A house under a real server: `words` are what it said to the beats. Line `HELD` waits for `release`."""

    def __init__(self, client: Client, hears: Hears = Hears.BOTH) -> None:
        super().__init__(ok)
        self._hears = hears
        self.words: list[Word] = []
        self.release = asyncio.Event()
        self.answer = self._held
        self._client = client
        self.tools.beat = self._beats

    def _beats(self) -> Beat:
        real = temporal_beat(self._client)

        async def beat(details: SliceResult) -> Word:
            word = await real(details)
            self.words.append(word)
            return Word.GO_ON if self._hears is Hears.SDK else word

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
                activities=[Execution(self.tools).run_slice],
                max_heartbeat_throttle_interval=throttle,
                default_heartbeat_throttle_interval=throttle,
                graceful_shutdown_timeout=timedelta(seconds=5),
            ) as worker,
        ):
            yield worker
            self.release.set()

    def run_of(self, lines: int, **policy: float) -> ModelRun:
        return ModelRun(
            batch_id=BATCH,
            tenant=TENANT,
            endpoint=Endpoint.CHAT_COMPLETIONS,
            prefix="p",
            model=MODEL,
            safe=MODEL,
            lines=lines,
            slices=1,
            closes_at=datetime.now(UTC) + timedelta(hours=1),
            policy=BatchPolicy().model_copy(update=policy),
        )


async def until_settled(house: House, lines: int) -> None:
    while len(await house.settled()) < lines:  # noqa: ASYNC110 - storage sets no event
        await asyncio.sleep(0.05)


async def test_a_run_of_several_turns_asks_every_line_once(temporal: Client) -> None:
    house = Observed(temporal)
    house.release.set()
    await plan_slice(house.storage, [line_of(n) for n in range(3)])
    async with house.worker():
        run = house.run_of(3, slice_seconds=0)
        result = await temporal.execute_workflow(ModelRunWorkflow.run, run, id="run", task_queue="orders")
    assert result == ModelRunResult(finished=True, completed=3)
    assert house.sent == ["0", "1", "2"]


async def test_a_stop_reaches_a_running_slice_with_its_next_beat(temporal: Client) -> None:
    house = Observed(temporal)
    await plan_slice(house.storage, [line_of(n) for n in range(6)])
    async with house.worker():
        run = house.run_of(6, cancel_grace_seconds=0)
        handle = await temporal.start_workflow(ModelRunWorkflow.run, run, id="run", task_queue="orders")
        await eventually(lambda: len(house.sent) == 6)
        await handle.signal(ModelRunWorkflow.stop)
        assert await handle.result() == ModelRunResult(finished=False)
    assert len(await house.settled()) == 5


# Where the acknowledged beat brings the news first, the SDK cancels an activity that has ended, and warns.
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")
@pytest.mark.parametrize("hears", Hears)
async def test_an_attempt_whose_workflow_is_gone_sends_and_stores_nothing_more(
    temporal: Client, hears: Hears
) -> None:
    house = Observed(temporal, hears)
    await plan_slice(house.storage, [line_of(n) for n in range(6)])
    async with house.worker():
        handle = await temporal.start_workflow(
            ModelRunWorkflow.run, house.run_of(6), id="run", task_queue="orders"
        )
        await eventually(lambda: len(house.sent) == 6 and Word.GO_ON in house.words)
        await until_settled(house, 5)
        before = dict(house.storage.objects), list(house.progress.upserts)
        await handle.terminate()
        await eventually(lambda: house.tools.permits.used == 0)
        house.release.set()
    assert (house.storage.objects, house.progress.upserts) == before
    assert len(house.sent) == 6
    assert Word.LOST not in house.words[:-1] or hears is Hears.SDK


async def test_a_worker_that_goes_hands_its_slice_to_the_next(temporal: Client) -> None:
    first, lines = Observed(temporal), [line_of(n) for n in range(6)]
    await plan_slice(first.storage, lines)
    async with first.worker() as worker:
        handle = await temporal.start_workflow(
            ModelRunWorkflow.run, first.run_of(6), id="run", task_queue="orders"
        )
        await eventually(lambda: len(first.sent) == 6)
        leaving = asyncio.create_task(worker.shutdown())
        await eventually(lambda: first.tools.permits.used == 1)
        first.release.set()
        await leaving
    second = Observed(temporal)
    second.storage.objects = first.storage.objects
    async with second.worker():
        assert await handle.result() == ModelRunResult(finished=True, completed=6)
    assert second.sent == []
