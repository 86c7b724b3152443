"""Rate limits of task queues on Temporal's server.

They follow our rate limits, and are not set twice. Limits that an operator set stay.
"""

import logging
from datetime import UTC, datetime

import pytest
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.task_queue_rate_limits import QueueRateLimit, QueueRateLimits, RateLimitSync
from tests.fakes.memory_database import MemoryDatabase


class MemoryLimits(QueueRateLimits):
    """The limits of a server in memory. `set_to` has all limits that were set, in order."""

    def __init__(self) -> None:
        self.limits: dict[str, QueueRateLimit] = {}
        self.set_to: list[tuple[str, float | None]] = []
        self.failing: RPCError | None = None

    async def get(self, queue: str) -> QueueRateLimit | None:
        if self.failing is not None:
            raise self.failing
        return self.limits.get(queue)

    async def set(self, queue: str, turns_per_second: float | None) -> None:
        if self.failing is not None:
            raise self.failing
        self.set_to.append((queue, turns_per_second))
        self.limits.pop(queue, None)
        if turns_per_second is not None:
            self.limits[queue] = QueueRateLimit(turns_per_second, is_ours=True)


class RateLimitFixture:
    def __init__(self, **settings: object) -> None:
        self.database, self.limits, self.metrics = MemoryDatabase(), MemoryLimits(), Metrics()
        self.rates = FleetRates(
            load(**settings),
            self.database.rates,
            lambda: frozenset({"a", "b"}),
            unavailable=DatabaseUnavailable,
        )
        self.now = 0.0
        self.sync = self.worker()

    def worker(self) -> RateLimitSync:
        return RateLimitSync(self.rates, self.limits, self.metrics, every_seconds=5, clock=lambda: self.now)

    async def change(self, model: str, rate: float | None) -> None:
        def anything(changes: list[RateChange]) -> None: ...

        await self.database.rates.change(model, rate, datetime.now(UTC), anything)
        await self.sync.sync()

    def shown(self, model: str, queue: str) -> float | None:
        labels = {"model": model, "queue": queue}
        return self.metrics.registry.get_sample_value("batchwright_rate_requests_per_second", labels)


async def test_every_worker_sets_the_limits_but_only_the_first_has_to() -> None:
    fixture = RateLimitFixture(models={"a": {"requests_per_second": 20}}, requests_per_second=50)
    for _ in range(2):
        await fixture.sync.sync()
        await fixture.worker().sync()
    assert fixture.limits.set_to == [("inference.a", 0.2), ("dispatch", 0.2)]


async def test_a_change_is_followed_and_a_rate_that_ends_lifts_its_limit() -> None:
    fixture = RateLimitFixture()
    await fixture.change("a", 0.5)
    await fixture.change("a", 1000)
    await fixture.change("a", None)
    assert fixture.limits.set_to == [
        ("inference.a", 0.25),
        ("inference.a", 1000 / 256),
        ("inference.a", None),
    ]


async def test_a_limit_set_by_hand_stays_while_there_is_no_rate() -> None:
    fixture = RateLimitFixture()
    fixture.limits.limits["inference.a"] = by_hand = QueueRateLimit(3.0, is_ours=False)
    await fixture.sync.sync()
    assert fixture.limits.limits == {"inference.a": by_hand}
    await fixture.change("a", 20)
    assert fixture.limits.limits == {"inference.a": QueueRateLimit(0.2, is_ours=True)}


async def test_while_a_rate_is_in_effect_a_limit_set_by_hand_lasts_a_minute() -> None:
    fixture = RateLimitFixture(models={"a": {"requests_per_second": 20}})
    await fixture.sync.sync()
    fixture.limits.limits["inference.a"] = QueueRateLimit(3.0, is_ours=False)
    fixture.now = 59
    await fixture.sync.sync()
    assert fixture.limits.limits["inference.a"].turns_per_second == 3.0
    fixture.now = 61
    await fixture.sync.sync()
    assert fixture.limits.limits["inference.a"].turns_per_second == 0.2


async def test_rounding_by_the_server_is_not_a_difference() -> None:
    fixture = RateLimitFixture(models={"a": {"requests_per_second": 20}})
    fixture.limits.limits["inference.a"] = QueueRateLimit(0.20000000298023224, is_ours=True)
    await fixture.sync.sync()
    assert fixture.limits.set_to == []


@pytest.mark.parametrize("status", [RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAVAILABLE])
async def test_a_server_that_sets_no_limit_is_logged_once_and_tried_again(
    status: RPCStatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    fixture = RateLimitFixture(models={"a": {"requests_per_second": 20}})
    fixture.limits.failing = RPCError("not now", status, b"")
    with caplog.at_level(logging.WARNING):
        await fixture.sync.sync()
        await fixture.sync.sync()
    [message] = [record.getMessage() for record in caplog.records]
    assert "the total rate is not limited" in message
    assert ("upgrade the Temporal server" in message) == (status is RPCStatusCode.UNIMPLEMENTED)
    fixture.limits.failing = None
    await fixture.sync.sync()
    assert fixture.limits.limits["inference.a"].turns_per_second == 0.2


async def test_a_server_without_limits_is_not_logged_if_no_rate_is_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = RateLimitFixture()
    fixture.limits.failing = RPCError("unknown method", RPCStatusCode.UNIMPLEMENTED, b"")
    with caplog.at_level(logging.WARNING):
        await fixture.sync.sync()
    assert caplog.records == []


async def test_the_rates_are_shown_per_model_and_queue() -> None:
    fixture = RateLimitFixture(models={"a": {"requests_per_second": 20}}, requests_per_second=50)
    await fixture.sync.sync()
    assert (fixture.shown("a", "inference.a"), fixture.shown("", "dispatch")) == (20, 30)
    await fixture.change("a", 0)
    assert (fixture.shown("a", "inference.a"), fixture.shown("", "dispatch")) == (None, 50)


async def test_a_limit_without_a_rate_is_lifted_by_a_worker_that_polls_its_queue_and_by_no_other() -> None:
    fixture = RateLimitFixture(models={"b": {"requests_per_second": 20}})
    for queue in ("inference.a", "dispatch"):
        fixture.limits.limits[queue] = QueueRateLimit(3.0, is_ours=True)
    await fixture.sync.sync(["inference.a"])
    assert sorted(fixture.limits.set_to) == [("inference.a", None), ("inference.b", 0.2)]
