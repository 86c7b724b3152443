"""Slices of a model with a rate limit: how many requests they send, at which intervals, and on which task
queue they continue.
"""

import time
from datetime import timedelta

import httpx
import pytest

from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.contracts.temporal_payloads.execution import SliceResult
from batchwright.rules.limits.rate_allocation import Pacing
from tests.activities.execution.fixture import (
    ExecutionFixture,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
    status,
)
from tests.fakes.rates import FixedRates

FAST = 500.0  # requests/s: a test of milliseconds


def paced(lines: int, rate: float = FAST, **settings: object) -> ExecutionFixture:
    execution = ExecutionFixture(ok, **settings)
    execution.context.rates = FixedRates(Pacing(rate, lines))
    return execution


def _refused(content: str) -> httpx.Response:
    return status(503)


def _first_fails(content: str) -> httpx.Response:
    return status(500) if content == "0" else ok(content)


async def test_a_turn_sends_its_share_and_returns_the_slice_at_once() -> None:
    execution = paced(lines=4)
    await plan_slice(execution.storage, [line_of(n) for n in range(10)])
    error = await execution.failure(request())
    assert (error.type, error.next_retry_delay) == (Failure.TURN_OVER, timedelta(milliseconds=1))
    assert len(execution.sent) == len(await execution.settled()) == 4
    assert execution.reported_reasons == []


async def test_turn_after_turn_sends_every_line_once() -> None:
    execution = paced(lines=4)
    await plan_slice(execution.storage, [line_of(n) for n in range(10)])
    counts: list[int] = []
    result = None
    while result is None:
        result = await execution.turn(request())
        counts.append(len(execution.sent))
        execution.next_attempt()
    assert counts == [4, 8, 10]
    assert result == SliceResult(finished=True, completed=10)
    assert execution.sent == [str(n) for n in range(10)]


async def test_retries_are_sends_too() -> None:
    execution = paced(lines=4)
    execution.reply = _first_fails
    await plan_slice(execution.storage, [line_of(n) for n in range(6)])
    for _ in range(3):
        before = len(execution.sent)
        await execution.turn(request())
        assert len(execution.sent) - before <= 4
        execution.next_attempt()
    assert execution.sent.count("0") > 1


async def test_a_refused_line_is_not_sent_to_another_backend_once_the_turn_has_used_its_share() -> None:
    two = ModelConfig(backends=[GatewayConfig(url="http://one"), GatewayConfig(url="http://two")])
    execution = paced(lines=1, config=two)
    execution.reply = _refused
    await plan_slice(execution.storage, [line_of(0)])
    assert await execution.turn(request()) is None
    assert len(execution.requests) == 1


async def test_a_slice_with_exactly_one_turn_of_lines_finishes_in_it() -> None:
    execution = paced(lines=4)
    await plan_slice(execution.storage, [line_of(n) for n in range(4)])
    assert await execution.run(request()) == SliceResult(finished=True, completed=4)


async def test_sends_are_spaced_regardless_of_the_concurrency_limit() -> None:
    execution = paced(lines=100, rate=50)
    await plan_slice(execution.storage, [line_of(n) for n in range(11)])
    began = time.monotonic()
    assert await execution.run(request()) == SliceResult(finished=True, completed=11)
    assert time.monotonic() - began >= 10 / 50 - 0.02  # a bound from below: no load makes it fail


async def test_a_rate_that_is_set_while_a_turn_runs_ends_it() -> None:
    execution = ExecutionFixture(ok, model_in_flight=2)
    rates = execution.context.rates = FixedRates()
    await plan_slice(execution.storage, [line_of(n) for n in range(200)])
    running = execution.start(request())
    await eventually(lambda: len(execution.sent) >= 10)
    rates.change(Pacing(FAST, 5))
    sent = len(execution.sent)
    with pytest.raises(Exception, match="next turn"):
        await running
    assert len(execution.sent) <= sent + 2


async def test_a_rate_removed_during_a_turn_no_longer_limits_it() -> None:
    execution = paced(lines=200, rate=5)
    rates = execution.context.rates
    assert isinstance(rates, FixedRates)
    await plan_slice(execution.storage, [line_of(n) for n in range(200)])
    running = execution.start(request())
    await eventually(lambda: len(execution.sent) == 2)
    rates.change(None)
    assert await running == SliceResult(finished=True, completed=200)


async def test_a_slice_on_the_wrong_queue_sends_nothing_and_returns_the_right_queue() -> None:
    execution = ExecutionFixture(ok)
    execution.context.rates = FixedRates(belongs="dispatch")
    await plan_slice(execution.storage, [line_of(0)])
    assert await execution.run(request()) == SliceResult(target_queue="dispatch")
    assert execution.sent == []


@pytest.mark.parametrize(("queue_changes", "seconds"), [(1, 2), (3, 8), (50, 30)])
async def test_each_further_move_of_a_run_waits_longer(queue_changes: int, seconds: int) -> None:
    execution = ExecutionFixture(ok)
    execution.context.rates = FixedRates(belongs="dispatch")
    await plan_slice(execution.storage, [line_of(0)])
    error = await execution.failure(request(queue_changes=queue_changes))
    assert (error.type, error.next_retry_delay) == (Failure.TURN_OVER, timedelta(seconds=seconds))
    execution.next_attempt()
    assert await execution.run(request(queue_changes=queue_changes)) == SliceResult(target_queue="dispatch")
    execution.context.rates = FixedRates()
    execution.next_attempt()
    assert await execution.run(request(queue_changes=queue_changes)) == SliceResult(
        finished=True, completed=1
    )
