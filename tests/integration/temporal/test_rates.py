"""Rate limits on a real Temporal server: two workers keep them, follow changes, and keep manual limits."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.contracts.temporal_payloads.execution import ModelRunResult
from batchwright.rules.limits.rate_allocation import ALL_MODELS, Pacing, pacing_for
from batchwright.starter.embedded_stack.temporal_server import find_binary
from batchwright.worker.task_queue_rate_limits import QueueRateLimit, TemporalRateLimits
from tests.activities.execution.fixture import eventually
from tests.integration.temporal.clusters import started
from tests.integration.temporal.rated_fleet import RatedFleet, Turn
from tests.workflows.fixture import time_skipping_server

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


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.rules.limits.rate_allocation.MAX_TURN_LINES", LINES)


def most_turns(pacing: Pacing, seconds: float) -> float:
    """Return how many times workers may start running a slice within `seconds`.

    The server may allow all starts of one second at the same instant.
    """
    return pacing.turns_per_second * (seconds + 1) + 1


@pytest.mark.usefixtures("short_turns")
async def test_two_workers_together_send_no_more_than_the_rate(address: str) -> None:
    fleet = RatedFleet(address, models={"a": {"requests_per_second": 20}})
    rate = pacing_for(20)
    async with fleet.workers() as client:
        began = time.monotonic()
        result = await fleet.run(client, "a", slices=8, lines=10)
        took = time.monotonic() - began
    assert result == ModelRunResult(finished=True, slices_done=8, completed=80)
    assert len(fleet.sends) == 80
    assert set(fleet.turns) == {Turn("inference.a", "a")}
    assert 24 <= len(fleet.turns) <= most_turns(rate, took)  # three turns a slice: 4, 4 and 2 lines
    assert len(fleet.sends) <= most_turns(rate, took) * LINES


async def test_a_changed_rate_applies_to_turns_and_queue_of_a_running_run(address: str) -> None:
    """With the rate before the change, the run would take five minutes."""
    fleet = RatedFleet(address, models={"a": {"requests_per_second": 0.2}})
    async with fleet.workers() as client:
        began = time.monotonic()
        running = asyncio.create_task(fleet.run(client, "a", slices=3, lines=20))
        await eventually(lambda: len(fleet.sends) >= 2)
        assert len(fleet.turns) <= most_turns(pacing_for(0.2), time.monotonic() - began)
        await fleet.change("a", 1000)
        assert await running == ModelRunResult(finished=True, slices_done=3, completed=60)
    assert len(fleet.sends) == 60


@pytest.mark.usefixtures("short_turns")
async def test_a_rate_set_during_a_run_slows_it_down(address: str) -> None:
    fleet = RatedFleet(address)
    async with fleet.workers() as client:
        await fleet.change("a", 20)
        began = time.monotonic()
        await fleet.run(client, "a", slices=8, lines=4)
        took = time.monotonic() - began
        assert len(fleet.sends) <= most_turns(pacing_for(20), took) * LINES
        await fleet.change("a", None)
        assert await TemporalRateLimits(client).get("inference.a") is None


@pytest.mark.usefixtures("short_turns")
async def test_models_without_their_own_rate_share_one_queue_and_all_models_together_keep_the_rate_over_all(
    address: str,
) -> None:
    """The slices are first put on the task queue of their model, and then move to the shared task queue."""
    fleet = RatedFleet(address, models={"a": {"requests_per_second": 20}}, requests_per_second=60)
    own, shared = pacing_for(20), pacing_for(40)
    async with fleet.workers() as client:
        began = time.monotonic()
        runs = (fleet.run(client, model, slices=6, lines=6) for model in "abc")
        results = await asyncio.gather(*runs)
        took = time.monotonic() - began
    assert results == [ModelRunResult(finished=True, slices_done=6, completed=36)] * 3
    assert Counter(fleet.sends) == {"a": 36, "b": 36, "c": 36}
    turns = Counter(fleet.turns)
    assert turns.keys() >= {Turn("inference.a", "a"), Turn(DISPATCH_QUEUE, "b"), Turn(DISPATCH_QUEUE, "c")}
    assert Turn(DISPATCH_QUEUE, "a") not in turns
    assert turns[Turn("inference.a", "a")] <= most_turns(own, took)
    at_dispatch = turns[Turn(DISPATCH_QUEUE, "b")] + turns[Turn(DISPATCH_QUEUE, "c")]
    assert 24 <= at_dispatch <= most_turns(shared, took)  # nothing of b and c was sent elsewhere


async def test_models_return_to_their_own_queues_once_the_rate_over_all_is_removed(address: str) -> None:
    fleet = RatedFleet(address, requests_per_second=0.2)
    async with fleet.workers() as client:
        running = asyncio.create_task(fleet.run(client, "b", slices=3, lines=5))
        await eventually(lambda: Turn(DISPATCH_QUEUE, "b") in fleet.turns and bool(fleet.sends))
        await fleet.change(ALL_MODELS, 0)
        assert await running == ModelRunResult(finished=True, slices_done=3, completed=15)
    assert fleet.turns[-1] == Turn("inference.b", "b")


async def test_a_queue_limit_set_by_hand_stays_until_a_rate_is_set(address: str, client: Client) -> None:
    await _set_by_hand(address, "inference.a", 7)
    fleet, limits = RatedFleet(address), TemporalRateLimits(client)
    while await limits.get("inference.a") is None:
        await asyncio.sleep(0.02)
    async with fleet.workers():
        assert await limits.get("inference.a") == QueueRateLimit(7, is_ours=False)
        await fleet.change("a", 20)
        found = await limits.get("inference.a")
        assert found == QueueRateLimit(SINGLE_PRECISION, is_ours=True)
        await fleet.change("a", None)
        assert await limits.get("inference.a") is None


async def test_a_server_without_queue_limits_is_reported() -> None:
    async with time_skipping_server() as environment:
        with pytest.raises(RPCError) as refused:
            await TemporalRateLimits(environment.client).set("inference.a", 1)
        assert refused.value.status is RPCStatusCode.UNIMPLEMENTED


async def _set_by_hand(address: str, queue: str, turns_per_second: float) -> None:
    """Set the limit of a task queue with Temporal's own command-line tool, as an operator does."""
    process = await asyncio.create_subprocess_exec(
        str(find_binary()),
        *("task-queue", "config", "set", "--address", address, "--task-queue", queue),
        *("--task-queue-type", "activity", "--queue-rps-limit", str(turns_per_second)),
        *("--queue-rps-limit-reason", "maintenance"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
