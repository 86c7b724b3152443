"""Ownership by acknowledged beats, and what a batch is told of waiting."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from activities.slices import ownership
from activities.slices.ownership import Ownership, Word, is_fresh
from activities.slices.waiting import WaitingSignals
from batchwright.contracts.batch import WaitingReason
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.waiting_base import Source
from tests.activities.execution_house import (
    BATCH,
    MODEL,
    TENANT,
    FakeServer,
    House,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.fakes.database import MemoryDatabase


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def beating(owner: Ownership, heard: list[Word]) -> AsyncGenerator["asyncio.Task[None]"]:
    task = asyncio.create_task(owner.run(SliceResult, heard.append, at_once=True))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_attempt_may_send_until_its_last_acknowledged_beat_is_old() -> None:
    clock = Clock()
    owner = Ownership(FakeServer().beat(), timedelta(seconds=30), clock)
    clock.now = 24.9
    assert owner.may_send
    clock.now = 25.0
    assert not owner.may_send


def test_without_a_heartbeat_timeout_nobody_takes_the_slice() -> None:
    clock = Clock()
    owner = Ownership(FakeServer().beat(), None, clock)
    clock.now = 1e9
    assert owner.may_send


async def test_an_acknowledged_beat_counts_from_when_it_was_sent() -> None:
    clock, server = Clock(), FakeServer()
    beat = server.beat()

    async def slow(details: SliceResult) -> Word:
        word = await beat(details)
        clock.now = 30.0  # the answer took as long as the timeout
        return word

    owner = Ownership(slow, timedelta(seconds=30), clock)
    async with beating(owner, []):
        await eventually(lambda: clock.now == 30.0)
        assert not owner.may_send


async def test_an_unanswered_beat_is_none() -> None:
    clock, server = Clock(), FakeServer(Word.NO_ANSWER)
    owner = Ownership(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    heard: list[Word] = []
    async with beating(owner, heard):
        await eventually(lambda: bool(server.heard))
        assert (owner.may_send, heard) == (False, [])


async def test_a_cancel_is_heard_and_beats_go_on() -> None:
    clock, server = Clock(), FakeServer(Word.CANCEL)
    owner = Ownership(server.beat(), timedelta(seconds=30), clock)
    clock.now = 25.0
    heard: list[Word] = []
    async with beating(owner, heard) as task:
        await eventually(lambda: bool(heard))
        assert (heard, owner.may_send, task.done()) == ([Word.CANCEL], True, False)


async def test_a_lost_slice_is_heard_once_and_beats_end() -> None:
    owner = Ownership(FakeServer(Word.LOST).beat(), timedelta(seconds=30))
    heard: list[Word] = []
    async with beating(owner, heard) as task:
        await task
    assert heard == [Word.LOST]


@pytest.mark.parametrize(
    ("attempt", "age", "fresh"),
    [(1, 0.1, True), (1, -0.1, True), (1, 40, False), (1, -40, False), (2, 0, False)],
)
def test_only_a_first_attempt_that_was_just_handed_out_is_fresh(
    attempt: int, age: float, fresh: bool
) -> None:
    now = datetime.now(UTC)
    info = ActivityEnvironment.default_info()
    info = dataclasses.replace(info, attempt=attempt, started_time=now - timedelta(seconds=age))
    assert is_fresh(info, now) is fresh


async def test_a_fresh_attempt_has_no_beat_yet() -> None:
    server = FakeServer()
    owner = Ownership(server.beat(), timedelta(seconds=30))
    task = asyncio.create_task(owner.run(SliceResult, lambda word: None, at_once=False))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.heard == []


def test_several_beats_fit_into_the_time_an_attempt_trusts_one() -> None:
    assert ownership.BEAT_SECONDS <= 2


async def test_what_was_in_flight_when_the_backend_broke_takes_no_reason_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("activities.slices.gate.PATIENCE_SECONDS", 0.0)
    house, broken = House(ok), asyncio.Event()
    await plan_slice(house.storage, [line_of(n) for n in range(2)])

    async def answer(request: httpx.Request) -> httpx.Response:
        if content_of(request) == "1":
            return status(403)
        await broken.wait()
        return ok("0")

    house.answer = answer
    house.next_worker()  # which beats at once
    house.tools.waiting.waits(TENANT, BATCH, MODEL, "told by another slice", 60.0)
    slice = asyncio.create_task(house.failure(request()))
    await eventually(lambda: house.circuit(MODEL).is_open)
    broken.set()
    assert (await slice).type == Failure.DEFERRED
    await house.tools.waiting.settle()
    assert "" not in [told.reason for _, told in house.told]
    assert "refuses" in house.told[-1][1].reason


class Told:
    """A worker that shares its table with `others`."""

    def __init__(self, others: "Told | None" = None) -> None:
        self.clock = Clock()
        self.database = others.database if others else MemoryDatabase()
        self.table = self.database.waiting
        self.reasons: list[tuple[str, str, str]] = []
        self.signals = WaitingSignals(self._tell, self.table, self.clock)

    async def _tell(self, batch_id: str, reason: WaitingReason) -> None:
        self.reasons.append((batch_id, reason.model, reason.reason))


async def test_a_reason_is_told_on_its_edge_only() -> None:
    told = Told()
    for _ in range(3):
        told.signals.waits("t", "b", "m", "away", 5.0)
    told.signals.waits("t", "b", "n", "away", 5.0)
    await told.signals.settle()
    assert told.reasons == [("b", "m", "away"), ("b", "n", "away")]


async def test_reasons_that_follow_each_other_are_told_at_once_and_from_the_fifth_on_once_a_minute() -> None:
    """Each is a signal in the run's history, and an outage may last for days."""
    told = Told()
    for reason in ("one", "two", "three", "four", "five"):
        told.signals.waits("t", "b", "m", reason, 5.0)
    told.clock.now = 59.0
    told.signals.waits("t", "b", "m", "five", 5.0)
    await told.signals.settle()
    assert [reason for _, _, reason in told.reasons] == ["one", "two", "three", "four"]
    told.clock.now = 60.0
    told.signals.waits("t", "b", "m", "five", 5.0)
    told.signals.waits("t", "b", "m", "six", 5.0)
    await told.signals.settle()
    assert [reason for _, _, reason in told.reasons][4:] == ["five"]


async def test_what_settles_after_a_backend_broke_hides_the_reason_for_no_minute() -> None:
    """Requests that were in flight then are answered, and their slice moves, between two that wait."""
    told = Told()
    told.signals.waits("t", "b", "m", "away", 5.0)
    told.signals.moves("t", "b", "m")
    told.signals.waits("t", "b", "m", "away", 5.0)
    await told.signals.settle()
    assert [reason for _, _, reason in told.reasons] == ["away", "", "away"]


async def test_moving_takes_a_reason_back_once() -> None:
    told = Told()
    told.signals.moves("t", "b", "m")
    told.signals.waits("t", "b", "m", "one", 5.0)
    told.signals.moves("t", "b", "m")
    told.signals.moves("t", "b", "m")
    await told.signals.settle()
    assert [reason for _, _, reason in told.reasons] == ["one", ""]


async def test_a_reason_of_a_worker_that_is_gone_is_taken_back_by_the_one_that_goes_on() -> None:
    gone = Told()
    goes_on = Told(gone)
    gone.signals.waits("t", "b", "m", "away", 60.0)
    await gone.signals.settle()
    assert [each.reason for each in await gone.table.of_source(Source.WORKER, datetime.now(UTC))] == ["away"]
    goes_on.signals.moves("t", "b", "m")
    await goes_on.signals.settle()
    assert goes_on.reasons == [("b", "m", "")]
    assert await gone.table.of_source(Source.WORKER, datetime.now(UTC)) == []


async def test_what_another_worker_took_back_is_told_again() -> None:
    still = Told()
    other = Told(still)
    still.signals.waits("t", "b", "m", "away", 60.0)
    await still.signals.settle()
    other.signals.moves("t", "b", "m")
    await other.signals.settle()
    still.clock.now = 6.0
    still.signals.waits("t", "b", "m", "away", 60.0)
    await still.signals.settle()
    assert [reason for _, _, reason in still.reasons] == ["away", "away"]


async def test_a_database_that_is_away_keeps_no_reason_from_the_run() -> None:
    told = Told()
    told.database.rows.failing = DatabaseUnavailable("away")
    told.signals.waits("t", "b", "m", "away", 5.0)
    told.signals.moves("t", "b", "m")
    await told.signals.settle()
    assert [reason for _, _, reason in told.reasons] == ["away", ""]
