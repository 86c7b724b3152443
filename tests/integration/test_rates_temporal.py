"""Rates on a real Temporal server: two workers' sends counted, changes followed, hand-set limits kept."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.execution import ModelRunResult
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.rules.rates import ALL_MODELS, Pacing, pacing
from starter.stack.temporal import find_binary
from tests.activities.execution_house import eventually
from tests.integration.clusters import started
from tests.integration.rated_fleet import RatedFleet, Turn
from tests.workflows.house import time_skipping_server
from worker.rates import Limit, ServerLimits

pytestmark = pytest.mark.integration

SINGLE_PRECISION = 0.20000000298023224  # what the server makes of 0.2
LINES = 4  # of a turn, at the rates of these tests
ONE_PARTITION = [
    *("--dynamic-config-value", "matching.numTaskqueueReadPartitions=1"),
    *("--dynamic-config-value", "matching.numTaskqueueWritePartitions=1"),
]


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    async with await started(*ONE_PARTITION) as environment:
        yield environment.client


@pytest.fixture
def address(client: Client) -> str:
    return client.service_client.config.target_host


def most_turns(pacing: Pacing, seconds: float) -> float:
    """What the server may let start: the limit's, and at once a second's worth of it and one more."""
    return pacing.turns_per_second * (seconds + 1) + 1


async def test_two_workers_together_send_no_more_than_the_rate(address: str) -> None:
    fleet = RatedFleet(address, slice_lines=LINES, models={"a": {"requests_per_second": 20}})
    rate = pacing(20, LINES)
    async with fleet.workers() as client:
        began = time.monotonic()
        result = await fleet.run(client, "a", slices=8, lines=10)
        took = time.monotonic() - began
    assert result == ModelRunResult(finished=True, completed=80)
    assert len(fleet.sends) == 80
    assert set(fleet.turns) == {Turn("inference.a", "a")}
    assert 24 <= len(fleet.turns) <= most_turns(rate, took)  # three turns a slice: 4, 4 and 2 lines
    assert len(fleet.sends) <= most_turns(rate, took) * LINES


async def test_a_change_reaches_turns_and_queue_of_a_run_under_way(address: str) -> None:
    """At the first rate the run would take five minutes."""
    fleet = RatedFleet(address, models={"a": {"requests_per_second": 0.2}})
    async with fleet.workers() as client:
        running = asyncio.create_task(fleet.run(client, "a", slices=3, lines=20))
        await eventually(lambda: len(fleet.sends) >= 2)
        assert len(fleet.turns) < 10  # of the 60 that it would take
        await fleet.change("a", 1000)
        assert await running == ModelRunResult(finished=True, completed=60)
    assert len(fleet.sends) == 60


async def test_a_rate_that_is_set_while_a_run_is_under_way_slows_it_down(address: str) -> None:
    fleet = RatedFleet(address, slice_lines=LINES, outstanding_slices=1)
    async with fleet.workers() as client:
        await fleet.change("a", 20)
        began = time.monotonic()
        await fleet.run(client, "a", slices=8, lines=4)
        took = time.monotonic() - began
        assert len(fleet.sends) <= most_turns(pacing(20, LINES), took) * LINES
        await fleet.change("a", None)
        assert await ServerLimits(client).get("inference.a") is None


async def test_models_without_a_rate_share_one_queue_and_the_sum_is_the_rate_over_all(address: str) -> None:
    """Their slices were put on the models' own queues, and move."""
    fleet = RatedFleet(
        address, slice_lines=LINES, models={"a": {"requests_per_second": 20}}, requests_per_second=60
    )
    own, shared = pacing(20, LINES), pacing(40, LINES)
    async with fleet.workers() as client:
        began = time.monotonic()
        runs = (fleet.run(client, model, slices=6, lines=6) for model in "abc")
        results = await asyncio.gather(*runs)
        took = time.monotonic() - began
    assert results == [ModelRunResult(finished=True, completed=36)] * 3
    assert Counter(fleet.sends) == {"a": 36, "b": 36, "c": 36}
    turns = Counter(fleet.turns)
    assert turns.keys() >= {Turn("inference.a", "a"), Turn(DISPATCH_QUEUE, "b"), Turn(DISPATCH_QUEUE, "c")}
    assert Turn(DISPATCH_QUEUE, "a") not in turns
    assert turns[Turn("inference.a", "a")] <= most_turns(own, took)
    at_dispatch = turns[Turn(DISPATCH_QUEUE, "b")] + turns[Turn(DISPATCH_QUEUE, "c")]
    assert 24 <= at_dispatch <= most_turns(shared, took)  # nothing of b and c was sent elsewhere


async def test_without_the_rate_over_all_models_go_back_to_their_own_queues(address: str) -> None:
    fleet = RatedFleet(address, requests_per_second=0.2)
    async with fleet.workers() as client:
        running = asyncio.create_task(fleet.run(client, "b", slices=3, lines=5))
        await eventually(lambda: Turn(DISPATCH_QUEUE, "b") in fleet.turns and bool(fleet.sends))
        await fleet.change(ALL_MODELS, 0)
        assert await running == ModelRunResult(finished=True, completed=15)
    assert fleet.turns[-1] == Turn("inference.b", "b")


async def test_a_limit_set_by_hand_stays_until_there_is_a_rate(address: str, client: Client) -> None:
    await _set_by_hand(address, "inference.a", 7)
    fleet, limits = RatedFleet(address), ServerLimits(client)
    async with fleet.workers():
        assert await limits.get("inference.a") == Limit(7, is_ours=False)
        await fleet.change("a", 20)
        found = await limits.get("inference.a")
        assert found == Limit(SINGLE_PRECISION, is_ours=True)
        await fleet.change("a", None)
        assert await limits.get("inference.a") is None


async def test_a_server_without_such_limits_says_so() -> None:
    async with time_skipping_server() as environment:
        with pytest.raises(RPCError) as refused:
            await ServerLimits(environment.client).set("inference.a", 1)
        assert refused.value.status is RPCStatusCode.UNIMPLEMENTED


async def _set_by_hand(address: str, queue: str, turns_per_second: float) -> None:
    """As an operator does it."""
    process = await asyncio.create_subprocess_exec(
        str(find_binary()),
        *("task-queue", "config", "set", "--address", address, "--task-queue", queue),
        *("--task-queue-type", "activity", "--queue-rps-limit", str(turns_per_second)),
        *("--queue-rps-limit-reason", "maintenance"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
