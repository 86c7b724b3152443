"""Every state in which a worker can be killed, how the next worker continues, and which metrics count it.

The next worker runs the attempt that Temporal starts after the crash.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from batchwright.activities.execution.activity import Execution
from batchwright.activities.finalization.activity import Finalization
from batchwright.activities.ingestion.activity import Ingestion
from batchwright.activities.ingestion.served_models import ServedModels
from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.results.segment_format import SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import load
from batchwright.storage.base import StorageUnavailable
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.interceptors.activity_metrics import ActivityMetricsInbound
from tests.activities.execution.fixture import BATCH, ExecutionFixture, ok, request
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, SettledBatch, names
from tests.activities.ingestion.fresh_batch import INPUT_KEY as FRESH_INPUT
from tests.activities.ingestion.fresh_batch import FakeModels, FreshBatch, a_line
from tests.fakes.rates import FixedRates
from tests.fakes.routers import NoRouters
from tests.segments import read_records


class Killed(Exception):
    """A crash of the worker. The message of the exception is the state in which the worker was killed."""


class Found(NamedTuple):
    """The state of the batch after the next worker has taken over.

    `status` is the status in the batch's row. `lines` has the custom_ids or contents of the lines that were
    written.
    """

    metrics: Metrics
    status: str
    lines: list[str]


async def killed(attempt: Awaitable[object]) -> None:
    with pytest.raises(Killed):
        await attempt


async def take_over(metrics: Metrics, step: str, does: Callable[[], Awaitable[object]]) -> None:
    """Run the next attempt of an activity, as a worker does if the last attempt ended without a result.

    Args:
        metrics: the metrics in which the attempt is counted.
        step: name of the activity.
        does: the body of the activity.
    """

    class Runs(ActivityInboundInterceptor):
        def __init__(self) -> None:
            """Do nothing, because there is no next interceptor."""

        async def execute_activity(self, input: ExecuteActivityInput) -> object:
            return await does()

    environment = ActivityEnvironment()
    info = {"activity_type": step, "attempt": 2, "heartbeat_timeout": timedelta(seconds=30)}
    environment.info = dataclasses.replace(environment.info, **info)
    given = ExecuteActivityInput(fn=does, args=[], executor=None, headers={})
    await environment.run(ActivityMetricsInbound(Runs(), metrics).execute_activity, given)


class _Dying(FreshBatch):
    """A batch whose first ingestion attempt dies when it writes the plan."""

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
        served, settings = ServedModels(FakeModels(frozenset(self.served)), FixedRates()), load()
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
    """An ingested batch of three lines. All workers share its tables and its storage."""

    def __init__(self) -> None:
        super().__init__(*(a_line(f"line-{n}", system=str(n)) for n in range(3)))

    async def begin(self) -> None:
        await self.upload()
        result = await self.ingest()
        (share,) = result.models
        self.slice = request(
            batch_id=BATCH,
            tenant=self.order.tenant,
            ingest_prefix=result.ingest_prefix,
            model=share.model,
            safe_model=share.safe_model,
            deadline=self.order.deadline,
        )
        self.folder = object_keys.slice_results(self.order.tenant, BATCH, share.safe_model, 0)

    def worker(self) -> ExecutionFixture:
        execution = ExecutionFixture(ok)
        progress = ProgressReporter(self.database.progress)
        execution.context = dataclasses.replace(execution.context, storage=self.storage, progress=progress)
        return execution

    async def settle(self, lines: int) -> None:
        """Store a segment with `lines` results that are not reported yet, as a killed worker leaves them."""
        dying = self.worker()
        dying.context.progress = ExecutionFixture(ok).context.progress
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
        """Run the slice on the next worker. Return its requests, and the counts in the batch's row."""
        execution = self.worker()
        await take_over(
            execution.metrics, "run_slice", lambda: Execution(execution.context).run_slice(self.slice)
        )
        row = await self.row()
        counted = f"{row.completed}/{row.total}"
        return Found(execution.metrics, row.status, [*sorted(execution.sent), counted])


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
    status: BatchStatus, missing_line_code: LineCode, settle: list[int], storage_fails: bool = False
) -> Found:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    await batch.put([batch.success(n) for n in settle])
    wanted = batch.request(status, missing_line_code)

    async def dies() -> None:
        raise Killed

    batch.memory.events[object_keys.plan(batch.prefix, "b")] = dies
    await killed(batch.finalize(wanted))
    finalization = Finalization(batch.tables, batch.storage, load(), batch.metrics, NoRouters())
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
    finalization = Finalization(batch.tables, batch.storage, load(), batch.metrics, NoRouters())
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
async def test_the_next_worker_continues_correctly_after_a_crash(
    crash: Callable[[], Awaitable[Found]], status: str, lines: list[str], counted: tuple[str, str]
) -> None:
    found = await crash()
    assert (found.status, found.lines) == (status, lines)
    labels = {"status": counted[0], "action": counted[1]}
    counter = "batchwright_batch_startup_recovery_total"
    assert found.metrics.registry.get_sample_value(counter, labels) == 1
