"""Waiting reasons of all batches: each is reported once, and cleared when it no longer applies."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_names import IO_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ModelCounts, WaitingReason
from batchwright.contracts.terms import Endpoint, HoldKind
from batchwright.database.records import SliceProgress
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.ids import new_batch_id, safe_name
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.rules.worker_stats import polled_queue_stats, running_slice_stats
from batchwright.temporal.task_queues import QueueReport
from batchwright.worker.control_tasks.fleet_waiting_reasons import WaitingReasonMonitor
from tests.fakes.memory_database import MemoryDatabase

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = inference_queue(safe_name("llama"))
STALLED = "its running slices have received no response recently, and its other slices wait for them"


class OneQueue:
    def __init__(self) -> None:
        self.depth = 0

    async def describe(self, queue: str) -> QueueReport:
        assert queue == QUEUE
        return QueueReport(name=queue, backlog=self.depth, oldest_seconds=0.0, pollers=1, limit=None)


class WaitingReasonFixture:
    """A batch of 100 lines for one model, another batch that may be started, and a clock."""

    def __init__(self) -> None:
        self.database, self.queues = MemoryDatabase(), OneQueue()
        self.at = START
        self.database.rows.clock = lambda: self.at
        self.rate: Pacing | None = None
        self.reported: list[WaitingReason] = []
        self.reported_of_other: list[WaitingReason] = []
        self.order = BatchOrder(
            batch_id=new_batch_id(),
            tenant="acme",
            input_file_id="file-1",
            endpoint=Endpoint.CHAT_COMPLETIONS,
            completion_window="24h",
            created_at=START,
            deadline=START + timedelta(days=1),
        )

        self.other = self.order.model_copy(update={"batch_id": new_batch_id(), "tenant": "globex"})

    async def begin(self, order: BatchOrder) -> None:
        await self.database.batches.upsert(order)
        models = [ModelCounts(model="llama", lines=100)]
        await self.database.batches.start(order.tenant, order.batch_id, total=100, models=models, at=START)

    async def _report(self, batch_id: str, reason: WaitingReason) -> None:
        (self.reported if batch_id == self.order.batch_id else self.reported_of_other).append(reason)

    def worker(self) -> WaitingReasonMonitor:
        return WaitingReasonMonitor(self.database, self.queues.describe, self, self._report, lambda: self.at)

    def pacing_of(self, model: str) -> Pacing | None:
        return self.rate

    def queue_of(self, model: str) -> str:
        return ""

    async def beat(self, *queues: str, of: BatchOrder | None = None) -> None:
        """Write the heartbeat of a worker that polls these queues, and runs slices of the batch `of`."""
        slices = {} if of is None else {(of.batch_id, "llama"): 4}
        stats = {**polled_queue_stats(queues or [QUEUE, IO_QUEUE]), **running_slice_stats(slices)}
        await self.database.workers.record_heartbeat("one:1", stats)

    async def settle(self, lines: int) -> None:
        progress = SliceProgress(
            tenant="acme",
            batch_id=self.order.batch_id,
            model="llama",
            number=0,
            generation=0,
            attempt=1,
            completed=lines,
            failed=0,
        )
        await self.database.progress.record([progress])

    @property
    def reasons(self) -> list[str]:
        return [reported.reason for reported in self.reported]


@pytest.fixture
async def fixture() -> WaitingReasonFixture:
    fixture = WaitingReasonFixture()
    await fixture.begin(fixture.order)
    return fixture


async def test_a_model_whose_queue_has_no_poller_waits_until_one_polls(
    fixture: WaitingReasonFixture,
) -> None:
    first, second = fixture.worker(), fixture.worker()
    for worker in (first, second, first):
        await worker.refresh()
    assert fixture.reasons == [f"no worker polls its queue {QUEUE}: start `batchwright worker`"]
    assert fixture.reported[0].since == START
    await fixture.beat()
    await second.refresh()
    assert fixture.reasons[1:] == [""]
    assert all(reported.fleet_wide for reported in fixture.reported)


async def test_a_killed_worker_no_longer_counts_as_a_poller_after_ten_seconds(
    fixture: WaitingReasonFixture,
) -> None:
    worker = fixture.worker()
    await fixture.beat()
    await worker.refresh()
    assert fixture.reported == []
    fixture.at += timedelta(seconds=7.6)
    await worker.refresh()
    assert fixture.reasons[0].startswith("no worker polls")


@pytest.mark.parametrize(
    ("depth", "rate", "reason"),
    [
        (3, None, "behind a few other slices"),
        (345, None, "behind 100 or more other slices in its queue"),
        (
            20,
            Pacing(5.0, 100),
            "limited by a rate of 5 requests per second",
        ),
    ],
)
async def test_a_model_without_progress_while_others_wait_shows_the_reason(
    fixture: WaitingReasonFixture, depth: int, rate: Pacing | None, reason: str
) -> None:
    fixture.queues.depth, fixture.rate = depth, rate
    await fixture.begin(fixture.other)
    worker = fixture.worker()
    await fixture.beat()
    await worker.refresh()
    fixture.at += timedelta(seconds=5)
    await fixture.beat()
    await worker.refresh()
    assert fixture.reasons == [reason]
    await fixture.settle(1)
    await worker.refresh()
    assert fixture.reasons == [reason, ""]


@pytest.mark.parametrize("reports_batches", [True, False], ids=["its worker tells", "an older worker"])
async def test_the_only_batch_in_its_queue_waits_for_no_other(
    fixture: WaitingReasonFixture, *, reports_batches: bool
) -> None:
    fixture.queues.depth = 28
    worker = fixture.worker()
    for _ in range(2):
        await fixture.beat(of=fixture.order if reports_batches else None)
        await worker.refresh()
        fixture.at += timedelta(seconds=5)
    assert fixture.reasons == [STALLED]
    await fixture.settle(1)
    await fixture.beat()
    await worker.refresh()
    assert fixture.reasons == [STALLED, ""]


async def test_of_two_batches_the_running_one_waits_for_no_other(
    fixture: WaitingReasonFixture,
) -> None:
    fixture.queues.depth = 28
    await fixture.begin(fixture.other)
    worker = fixture.worker()
    for _ in range(2):
        await fixture.beat(of=fixture.other)
        await worker.refresh()
        fixture.at += timedelta(seconds=5)
    assert fixture.reasons == ["behind 10 or more other slices in its queue"]
    assert [reported.reason for reported in fixture.reported_of_other] == [STALLED]


async def test_a_model_that_settles_lines_does_not_wait(fixture: WaitingReasonFixture) -> None:
    fixture.queues.depth = 50
    worker = fixture.worker()
    for settled in range(1, 5):
        await fixture.beat()
        await fixture.settle(settled)
        await worker.refresh()
        fixture.at += timedelta(seconds=5)
    assert fixture.reported == []


async def test_a_day_of_slow_lines_is_few_signals(fixture: WaitingReasonFixture) -> None:
    """Between two lines, the batch seems to wait. Temporal accepts at most 10,000 signals for a workflow.
    After that, the batch could no longer be cancelled.
    """
    fixture.queues.depth = 50
    worker = fixture.worker()
    for line in range(24 * 60 * 6):
        await fixture.settle(line % 50)
        for _ in range(2):
            await fixture.beat(of=fixture.order)
            await worker.refresh()
            fixture.at += timedelta(seconds=5)
    assert 100 < len(fixture.reported) < 400
    assert await fixture.database.waiting.get(WaitingSource.FLEET, fixture.at) != []


async def test_a_reason_that_could_not_be_signalled_is_signalled_later(fixture: WaitingReasonFixture) -> None:
    fixture.queues.depth = 50
    worker = fixture.worker()
    for line in range(30):
        await fixture.settle(line)
        for _ in range(2):
            await fixture.beat(of=fixture.order)
            await worker.refresh()
            fixture.at += timedelta(seconds=5)
    before = len(fixture.reported)
    assert fixture.reasons[-1] == ""
    for _ in range(12):
        await fixture.beat(of=fixture.order)
        await worker.refresh()
        fixture.at += timedelta(seconds=5)
    assert fixture.reasons[before:] == [STALLED]


async def test_a_batch_without_an_io_worker_shows_the_reason_until_one_runs() -> None:
    fixture = WaitingReasonFixture()
    await fixture.database.batches.upsert(fixture.order)
    worker = fixture.worker()
    await fixture.beat(QUEUE)
    await worker.refresh()
    assert [(reported.model, reported.reason) for reported in fixture.reported] == [
        ("", f"no worker polls its queue {IO_QUEUE}: start `batchwright worker`")
    ]
    await fixture.beat()
    await worker.refresh()
    assert fixture.reasons[1:] == [""]


async def test_a_dispatching_batch_needs_no_io_worker_until_its_deadline(
    fixture: WaitingReasonFixture,
) -> None:
    worker = fixture.worker()
    await fixture.beat(QUEUE)
    await worker.refresh()
    assert fixture.reported == []
    fixture.at = fixture.order.deadline
    await fixture.beat(QUEUE)
    await worker.refresh()
    assert [reported.model for reported in fixture.reported] == [""]


async def test_a_reason_that_is_not_renewed_expires(fixture: WaitingReasonFixture) -> None:
    await fixture.worker().refresh()
    waiting = fixture.database.waiting
    assert await waiting.get(WaitingSource.FLEET, fixture.at)
    assert await waiting.get(WaitingSource.FLEET, fixture.at + timedelta(seconds=31)) == []


@pytest.mark.parametrize(("kind", "name"), [(HoldKind.TENANT, "acme"), (HoldKind.MODEL, "llama")])
async def test_a_held_batch_says_so_until_it_is_released(
    fixture: WaitingReasonFixture, kind: HoldKind, name: str
) -> None:
    await fixture.beat(of=fixture.order)
    worker = fixture.worker()
    await worker.refresh()
    assert fixture.reasons == []
    await fixture.database.holds.put(kind, name, START)
    await worker.refresh()
    await fixture.database.holds.remove(kind, name)
    await worker.refresh()
    assert fixture.reasons == [
        f"an operator holds the {kind}: its lines are not sent until the hold is released",
        "",
    ]
