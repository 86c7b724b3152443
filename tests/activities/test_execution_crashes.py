"""Lines that workers die of are found among all others, and cost no other line its answer."""

import asyncio
import json

import httpx
import pytest
from temporalio.activity import ActivityCancellationDetails

from activities.slices.caution import GIVEN_UP_AFTER, GROUP, Past, past_of
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import HANDED_BACK, SliceRequest
from tests.activities.execution_house import House, content_of, line_of, ok, plan_slice, request

POISON = "7"
LINES = 40


class Mortal(House):
    """A house whose worker dies when it asks the poison: nothing is stored from then on."""

    def __init__(self, poison: str = POISON, **settings: object) -> None:
        super().__init__(ok, **settings)
        self.poison = poison
        self.answer = self.dies
        self.deaths = 0

    async def dies(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == self.poison:
            self.deaths += 1
            # Nobody asked for it: the attempt may write nothing more.
            self.environment.cancel(cancellation_details=ActivityCancellationDetails(timed_out=True))
            await asyncio.Event().wait()
        return ok(content_of(sent))

    async def until_finished(self, request: SliceRequest) -> None:
        """Worker after worker, as Temporal starts them."""
        for _ in range(20):
            if await self._result(request):
                return
            self.next_worker()
        raise AssertionError("worker after worker died")

    async def _result(self, request: SliceRequest) -> bool:
        task = self.start(request)
        await asyncio.wait([task])
        error = task.exception()
        assert error is None or getattr(error, "type", "") == Failure.OWNERSHIP_LOST, error
        return error is None and task.result().finished


async def test_a_poison_line_that_kills_its_worker_is_given_up_and_every_other_line_is_answered() -> None:
    house = Mortal()
    offsets = await plan_slice(house.storage, [line_of(n) for n in range(LINES)])
    await house.until_finished(request())
    settled = await house.settled()
    assert settled.keys() == set(offsets)
    failed = [json.loads(record.payload) for record in settled.values() if not record.success]
    assert [(line["custom_id"], line["error"]["code"]) for line in failed] == [
        (f"c-{POISON}", "worker_crashed")
    ]
    assert house.deaths == 2 + GIVEN_UP_AFTER
    assert house.sent.count(POISON) == house.deaths


async def test_a_suspect_is_asked_with_nothing_else_in_flight() -> None:
    """Of its slice, nor a suspect of another: the worker's lock is held."""
    house = Mortal()
    in_flight, at_death, is_locked = 0, list[int](), list[bool]()

    async def counted(sent: httpx.Request) -> httpx.Response:
        nonlocal in_flight
        in_flight += 1
        try:
            if content_of(sent) == POISON:
                at_death.append(in_flight)
                await asyncio.sleep(0)
                is_locked.append(house.tools.alone.locked())
                return await house.dies(sent)
            await asyncio.sleep(0)
            return ok(content_of(sent))
        finally:
            in_flight -= 1

    house.answer = counted
    await plan_slice(house.storage, [line_of(n) for n in range(LINES)])
    await house.until_finished(request())
    assert at_death[2] <= GROUP
    assert at_death[3:] == [1] * (GIVEN_UP_AFTER - 1)
    assert is_locked[3:] == [True] * (GIVEN_UP_AFTER - 1)


async def test_a_worker_that_dies_once_makes_nobody_careful() -> None:
    house = Mortal()
    await plan_slice(house.storage, [line_of(n) for n in range(10)])
    task = house.start(request())
    await asyncio.wait([task])
    house.next_worker()
    house.poison = ""
    result = await house.run(request())
    assert (result.finished, result.completed) == (True, 10)
    kinds = [record.kind.name for record in await house.records()]
    assert set(kinds) == {"SETTLED"}


async def test_turns_that_end_by_themselves_count_as_no_deaths() -> None:
    house = House(ok)
    await plan_slice(house.storage, [line_of(n) for n in range(5)])
    for _ in range(5):
        await house.turn(request(slice_seconds=0))
        house.next_attempt()
    assert {record.kind.name for record in await house.records()} == {"SETTLED"}


@pytest.mark.parametrize(
    ("attempt", "details", "past"),
    [
        (1, [], Past(1, 1)),
        (3, [], Past(3, 1)),  # two workers died before their first beat
        (4, [{"attempt": 3, "since": 2}], Past(4, 2)),
        (4, [{"attempt": 3, "since": 2}, HANDED_BACK], Past(4, 4)),
        (6, [{"attempt": 3, "since": 2}, HANDED_BACK], Past(6, 4)),  # two died without a beat since
        (4, [HANDED_BACK], Past(4, 4)),
        (4, [{"completed": 1}], Past(4, 1)),  # of a version that did not tell
    ],
)
def test_deaths_in_a_row_are_told_by_attempts_and_beats(
    attempt: int, details: list[object], past: Past
) -> None:
    assert past_of(attempt, details) == past
