"""Every state in which a worker can be killed, what the next one makes of it, and how that is counted.

The table is that of recovery at start (S0-9 to S0-15); here it is what Temporal's next attempt does.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.execution import Execution
from activities.finalization import Finalization
from activities.ingestion import Ingestion
from activities.slices.progress import ProgressReporter
from batchwright.contracts.errors import LineCode
from batchwright.contracts.openai import BatchStatus
from batchwright.rules import keys
from batchwright.rules.segments import SegmentWriter, read_records
from batchwright.settings import load
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from tests.activities.execution_house import BATCH, House, ok, request
from tests.activities.fresh_batch import INPUT_KEY as FRESH_INPUT
from tests.activities.fresh_batch import FreshBatch, Served, a_line
from tests.activities.settled_batch import BATCH_ID, TENANT, SettledBatch, names
from worker.steps import Attempt


class Killed(Exception):
    """Where the worker was killed."""


class Found(NamedTuple):
    """After the takeover: the row's status, and which custom_ids or contents came out."""

    metrics: Metrics
    status: str
    lines: list[str]


async def killed(attempt: Awaitable[object]) -> None:
    with pytest.raises(Killed):
        await attempt


async def take_over(metrics: Metrics, step: str, does: Callable[[], Awaitable[object]]) -> None:
    """The next attempt, as a worker runs it, of one that left no word."""

    class Runs(ActivityInboundInterceptor):
        def __init__(self) -> None:
            """Nothing comes after it."""

        async def execute_activity(self, input: ExecuteActivityInput) -> object:
            return await does()

    environment = ActivityEnvironment()
    info = {"activity_type": step, "attempt": 2, "heartbeat_timeout": timedelta(seconds=30)}
    environment.info = dataclasses.replace(environment.info, **info)
    given = ExecuteActivityInput(fn=does, args=[], executor=None, headers={})
    await environment.run(Attempt(Runs(), metrics).execute_activity, given)


class _Dying(FreshBatch):
    """Its first attempt dies when the plan is written."""

    async def die(self) -> None:
        put = self.storage.put

        async def dies(key: str, data: bytes) -> None:
            raise Killed(key)

        self.storage.put = dies
        try:
            await killed(self.ingest())
        finally:
            self.storage.put = put

    async def again(self) -> Found:
        await take_over(self.metrics, "ingest", self._ingested)
        row = await self.row()
        return Found(self.metrics, row.status, [str(row.total)])

    async def _ingested(self) -> object:
        served, settings = Served(frozenset(self.served)), load()
        ingestion = Ingestion(self.database, self.storage, served, settings, self.metrics)
        return await ingestion.ingest(self.order)


async def validating(window: timedelta = timedelta(days=1)) -> Found:
    batch = _Dying(a_line("1"), a_line("2", "b"), window=window)
    await batch.upload()
    await batch.die()
    return await batch.again()


async def validating_past_its_deadline() -> Found:
    return await validating(timedelta(0))


async def validating_a_wrong_input() -> Found:
    batch = _Dying(a_line("1"))
    await batch.upload()
    await batch.die()
    batch.storage.objects[FRESH_INPUT] = b"{"
    return await batch.again()


class _Running(FreshBatch):
    """A batch of three lines that was ingested; its workers share its tables and its storage."""

    def __init__(self) -> None:
        super().__init__(*(a_line(f"line-{n}", system=str(n)) for n in range(3)))

    async def begin(self) -> None:
        await self.upload()
        result = await self.ingest()
        (share,) = result.models
        self.slice = request(
            batch_id=BATCH,
            tenant=self.order.tenant,
            prefix=result.prefix,
            model=share.model,
            safe=share.safe,
            closes_at=self.order.expires_at,
        )
        self.folder = keys.slice_results(self.order.tenant, BATCH, share.safe, 0)

    def worker(self) -> House:
        house = House(ok)
        progress = ProgressReporter(self.database.progress)
        house.tools = dataclasses.replace(house.tools, storage=self.storage, progress=progress)
        return house

    async def settle(self, lines: int) -> None:
        """As a worker that was killed leaves it: a segment, of which it had told nobody yet."""
        dying = self.worker()
        dying.tools.progress = House(ok).tools.progress
        await dying.run(self.slice)
        (segment,) = [info.key async for info in self.storage.list(self.folder)]
        records = list(read_records(await self.storage.get(segment)))
        writer = SegmentWriter()
        for record in records[:lines]:
            writer.add(record)
        await self.storage.delete(segment)
        if lines:
            await self.storage.put(segment, writer.finish())

    async def again(self) -> Found:
        """What the next worker asks, and what the row tells when its slice has ended."""
        house = self.worker()
        await take_over(house.metrics, "run_slice", lambda: Execution(house.tools).run_slice(self.slice))
        row = await self.row()
        counted = f"{row.completed}/{row.total}"
        return Found(house.metrics, row.status, [*sorted(house.sent), counted])


async def in_progress_without_output() -> Found:
    batch = _Running()
    await batch.begin()
    await batch.settle(0)
    return await batch.again()


async def in_progress_with_output() -> Found:
    batch = _Running()
    await batch.begin()
    await batch.settle(2)
    return await batch.again()


async def _finalize(
    status: BatchStatus, unsettled: LineCode, settle: list[int], storage_fails: bool = False
) -> Found:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    await batch.put([batch.success(n) for n in settle])
    wanted = batch.request(status, unsettled)

    async def dies() -> None:
        raise Killed

    batch.memory.events[keys.plan(batch.prefix, "b")] = dies
    await killed(batch.finalize(wanted))
    finalization = Finalization(batch.tables, batch.storage, load(), batch.metrics)
    if storage_fails:
        batch.memory.failing = StorageUnavailable("no disk")
        with pytest.raises(ApplicationError):
            await take_over(batch.metrics, "finalize", lambda: finalization.finalize(wanted))
    else:
        await take_over(batch.metrics, "finalize", lambda: finalization.finalize(wanted))
    batch.memory.failing = None
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    return Found(batch.metrics, row.status, [*await batch.ids("output"), "|", *await batch.ids("error")])


async def finalizing() -> Found:
    return await _finalize(BatchStatus.COMPLETED, LineCode.BATCH_FAILED, [0, 1, 2])


async def finalizing_without_storage() -> Found:
    return await _finalize(BatchStatus.COMPLETED, LineCode.BATCH_FAILED, [0, 1, 2], storage_fails=True)


async def cancelling() -> Found:
    return await _finalize(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED, [1])


async def past_its_deadline() -> Found:
    return await _finalize(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED, [0])


async def terminal() -> Found:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    await batch.put([batch.success(n) for n in range(3)])
    await batch.finalize()
    finalization = Finalization(batch.tables, batch.storage, load(), batch.metrics)
    await take_over(batch.metrics, "finalize", lambda: finalization.finalize(batch.request()))
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    return Found(batch.metrics, row.status, await batch.ids("output"))


@pytest.mark.parametrize(
    ("crash", "status", "lines", "counted"),
    [
        (in_progress_without_output, "in_progress", ["0", "1", "2", "3/3"], ("in_progress", "re_enqueued")),
        (in_progress_with_output, "in_progress", ["2", "3/3"], ("in_progress", "re_enqueued")),
        (past_its_deadline, "expired", ["line-0", "|", "line-1", "line-2"], ("in_progress", "expired")),
        (finalizing, "completed", [*names([0, 1, 2]), "|"], ("finalizing", "finalized")),
        (finalizing_without_storage, "finalizing", ["|"], ("finalizing", "error")),
        (cancelling, "cancelled", ["line-1", "|", "line-0", "line-2"], ("cancelling", "cancelled")),
        (validating, "in_progress", ["2"], ("validating", "re_enqueued")),
        (validating_past_its_deadline, "in_progress", ["2"], ("validating", "re_enqueued")),
        (validating_a_wrong_input, "failed", ["1"], ("validating", "failed")),
        (terminal, "completed", names([0, 1, 2]), ("unknown", "cleaned_up")),
    ],
)  # fmt: skip
async def test_what_the_next_worker_makes_of_a_crash(
    crash: Callable[[], Awaitable[Found]], status: str, lines: list[str], counted: tuple[str, str]
) -> None:
    found = await crash()
    assert (found.status, found.lines) == (status, lines)
    labels = {"status": counted[0], "action": counted[1]}
    counter = "batchwright_batch_startup_recovery_total"
    assert found.metrics.registry.get_sample_value(counter, labels) == 1
