"""What a control worker tells batches of the fleet: each reason once, and taken back once it is over."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.batch import BatchOrder, WaitingReason
from batchwright.contracts.names import IO_QUEUE, inference_queue
from batchwright.contracts.openai import Endpoint
from batchwright.database.rows import ModelCount, SliceProgress
from batchwright.database.waiting_base import Source
from batchwright.rules.ids import new_batch_id, safe_name
from batchwright.rules.polled import polls, runs
from batchwright.rules.rates import Pacing
from tests.fakes.database import MemoryDatabase
from worker.queues import Queues, QueueState
from worker.reasons import Reasons

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = inference_queue(safe_name("llama"))
UNANSWERED = "its slices that run have had no answer lately, and its others wait for them"


class OneQueue(Queues):
    def __init__(self) -> None:
        self.depth = 0

    async def describe(self, queue: str) -> QueueState:
        assert queue == QUEUE
        return QueueState(self.depth, 0.0, 1)


class House:
    """A batch of 100 lines of one model, and another that may begin; time passes when it is told to."""

    def __init__(self) -> None:
        self.database, self.queues = MemoryDatabase(), OneQueue()
        self.at = START
        self.rate: Pacing | None = None
        self.told: list[WaitingReason] = []
        self.told_other: list[WaitingReason] = []
        self.order = BatchOrder(
            batch_id=new_batch_id(),
            tenant="acme",
            input_file_id="file-1",
            endpoint=Endpoint.CHAT_COMPLETIONS,
            completion_window="24h",
            created_at=START,
            expires_at=START + timedelta(days=1),
        )

        self.other = self.order.model_copy(update={"batch_id": new_batch_id(), "tenant": "globex"})

    async def begin(self, order: BatchOrder) -> None:
        await self.database.batches.upsert(order)
        models = [ModelCount(model="llama", lines=100)]
        await self.database.batches.begin(order.tenant, order.batch_id, total=100, models=models, at=START)

    async def _tell(self, batch_id: str, reason: WaitingReason) -> None:
        (self.told if batch_id == self.order.batch_id else self.told_other).append(reason)

    def worker(self) -> Reasons:
        return Reasons(
            self.database, self.queues, lambda _: self.rate, lambda _: "", self._tell, lambda: self.at
        )

    async def beat(self, *queues: str, of: BatchOrder | None = None) -> None:
        """A worker's, which runs slices of that batch."""
        slices = {} if of is None else {(of.batch_id, "llama"): 4}
        stats = {**polls(queues or [QUEUE, IO_QUEUE]), **runs(slices)}
        await self.database.workers.beat("one:1", stats, self.at)

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
        return [told.reason for told in self.told]


@pytest.fixture
async def house() -> House:
    house = House()
    await house.begin(house.order)
    return house


async def test_a_model_whose_queue_nobody_polls_waits_until_somebody_does(house: House) -> None:
    first, second = house.worker(), house.worker()
    for worker in (first, second, first):
        await worker.look()
    assert house.reasons == [f"no worker polls its queue {QUEUE}: start `batchwright worker`"]
    assert house.told[0].since == START
    await house.beat()
    await second.look()
    assert house.reasons[1:] == [""]
    assert all(told.stays for told in house.told)


async def test_a_worker_that_was_killed_polls_no_more_within_ten_seconds(house: House) -> None:
    worker = house.worker()
    await house.beat()
    await worker.look()
    assert house.told == []
    house.at += timedelta(seconds=7.6)
    await worker.look()
    assert house.reasons[0].startswith("no worker polls")


@pytest.mark.parametrize(
    ("depth", "rate", "reason"),
    [
        (3, None, "behind a few other slices"),
        (345, None, "behind 100 or more other slices in its queue"),
        (
            20,
            Pacing(5.0, 100),
            "held by a rate of 5 requests a second",
        ),
    ],
)
async def test_a_model_that_settles_nothing_while_others_wait_too_says_so(
    house: House, depth: int, rate: Pacing | None, reason: str
) -> None:
    house.queues.depth, house.rate = depth, rate
    await house.begin(house.other)
    worker = house.worker()
    await house.beat()
    await worker.look()
    house.at += timedelta(seconds=5)
    await house.beat()
    await worker.look()
    assert house.reasons == [reason]
    await house.settle(1)
    await worker.look()
    assert house.reasons == [reason, ""]


@pytest.mark.parametrize("tells", [True, False], ids=["its worker tells", "an older worker"])
async def test_a_batch_alone_in_its_queue_is_behind_nobody(house: House, *, tells: bool) -> None:
    house.queues.depth = 28
    worker = house.worker()
    for _ in range(2):
        await house.beat(of=house.order if tells else None)
        await worker.look()
        house.at += timedelta(seconds=5)
    assert house.reasons == [UNANSWERED]
    await house.settle(1)
    await house.beat()
    await worker.look()
    assert house.reasons == [UNANSWERED, ""]


async def test_of_two_batches_the_one_whose_slices_run_is_behind_nobody(house: House) -> None:
    house.queues.depth = 28
    await house.begin(house.other)
    worker = house.worker()
    for _ in range(2):
        await house.beat(of=house.other)
        await worker.look()
        house.at += timedelta(seconds=5)
    assert house.reasons == ["behind 10 or more other slices in its queue"]
    assert [told.reason for told in house.told_other] == [UNANSWERED]


async def test_a_model_that_settles_lines_does_not_wait(house: House) -> None:
    house.queues.depth = 50
    worker = house.worker()
    for settled in range(1, 5):
        await house.beat()
        await house.settle(settled)
        await worker.look()
        house.at += timedelta(seconds=5)
    assert house.told == []


async def test_a_batch_whose_input_nobody_can_read_says_so_until_somebody_can() -> None:
    house = House()
    await house.database.batches.upsert(house.order)
    worker = house.worker()
    await house.beat(QUEUE)
    await worker.look()
    assert [(told.model, told.reason) for told in house.told] == [
        ("", f"no worker polls its queue {IO_QUEUE}: start `batchwright worker`")
    ]
    await house.beat()
    await worker.look()
    assert house.reasons[1:] == [""]


async def test_a_batch_that_dispatches_needs_nobody_who_reads_files_until_its_window_is_over(
    house: House,
) -> None:
    worker = house.worker()
    await house.beat(QUEUE)
    await worker.look()
    assert house.told == []
    house.at = house.order.expires_at
    await house.beat(QUEUE)
    await worker.look()
    assert [told.model for told in house.told] == [""]


async def test_a_reason_nobody_renews_runs_out(house: House) -> None:
    await house.worker().look()
    waiting = house.database.waiting
    assert await waiting.of_source(Source.FLEET, house.at)
    assert await waiting.of_source(Source.FLEET, house.at + timedelta(seconds=31)) == []
