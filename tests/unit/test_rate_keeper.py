"""The server's limits follow the rates, are set once, and hand-set ones stay."""

import logging
from datetime import UTC, datetime

import pytest
from temporalio.service import RPCError, RPCStatusCode

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import RateChange
from batchwright.inference.rates import FleetRates
from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from tests.fakes.database import MemoryDatabase
from worker.rates import Limit, Limits, RateKeeper


class MemoryLimits(Limits):
    """A server: `set_to` is what it was told, in order."""

    def __init__(self) -> None:
        self.limits: dict[str, Limit] = {}
        self.set_to: list[tuple[str, float | None]] = []
        self.failing: RPCError | None = None

    async def get(self, queue: str) -> Limit | None:
        if self.failing is not None:
            raise self.failing
        return self.limits.get(queue)

    async def set(self, queue: str, turns_per_second: float | None) -> None:
        if self.failing is not None:
            raise self.failing
        self.set_to.append((queue, turns_per_second))
        self.limits.pop(queue, None)
        if turns_per_second is not None:
            self.limits[queue] = Limit(turns_per_second, is_ours=True)


class House:
    def __init__(self, **settings: object) -> None:
        self.database, self.limits, self.metrics = MemoryDatabase(), MemoryLimits(), Metrics()
        self.rates = FleetRates(
            load(**settings),
            self.database.rates,
            lambda: frozenset({"a", "b"}),
            unavailable=DatabaseUnavailable,
        )
        self.now = 0.0
        self.keeper = self.worker()

    def worker(self) -> RateKeeper:
        return RateKeeper(self.rates, self.limits, self.metrics, every_seconds=5, clock=lambda: self.now)

    async def change(self, model: str, rate: float | None) -> None:
        def anything(changes: list[RateChange]) -> None: ...

        await self.database.rates.change(model, rate, datetime.now(UTC), anything)
        await self.keeper.keep()

    def shown(self, model: str, queue: str) -> float | None:
        labels = {"model": model, "queue": queue}
        return self.metrics.registry.get_sample_value("batchwright_rate_requests_per_second", labels)


async def test_every_worker_sets_the_limits_but_only_the_first_has_to() -> None:
    house = House(models={"a": {"requests_per_second": 20}}, requests_per_second=50)
    for _ in range(2):
        await house.keeper.keep()
        await house.worker().keep()
    assert house.limits.set_to == [("inference.a", 0.2), ("dispatch", 0.2)]


async def test_a_change_is_followed_and_a_rate_that_ends_lifts_its_limit() -> None:
    house = House()
    await house.change("a", 0.5)
    await house.change("a", 1000)
    await house.change("a", None)
    assert house.limits.set_to == [
        ("inference.a", 0.25),
        ("inference.a", 1000 / 256),
        ("inference.a", None),
    ]


async def test_a_limit_set_by_hand_stays_while_there_is_no_rate() -> None:
    house = House()
    house.limits.limits["inference.a"] = by_hand = Limit(3.0, is_ours=False)
    await house.keeper.keep()
    assert house.limits.limits == {"inference.a": by_hand}
    await house.change("a", 20)
    assert house.limits.limits == {"inference.a": Limit(0.2, is_ours=True)}


async def test_while_a_rate_is_in_effect_a_limit_set_by_hand_lasts_a_minute() -> None:
    house = House(models={"a": {"requests_per_second": 20}})
    await house.keeper.keep()
    house.limits.limits["inference.a"] = Limit(3.0, is_ours=False)
    house.now = 59
    await house.keeper.keep()
    assert house.limits.limits["inference.a"].turns_per_second == 3.0
    house.now = 61
    await house.keeper.keep()
    assert house.limits.limits["inference.a"].turns_per_second == 0.2


async def test_the_precision_of_the_server_is_no_difference() -> None:
    house = House(models={"a": {"requests_per_second": 20}})
    house.limits.limits["inference.a"] = Limit(0.20000000298023224, is_ours=True)
    await house.keeper.keep()
    assert house.limits.set_to == []


@pytest.mark.parametrize("status", [RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAVAILABLE])
async def test_a_server_that_sets_no_limit_is_named_once_and_asked_again(
    status: RPCStatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(models={"a": {"requests_per_second": 20}})
    house.limits.failing = RPCError("not now", status, b"")
    with caplog.at_level(logging.WARNING):
        await house.keeper.keep()
        await house.keeper.keep()
    [said] = [record.getMessage() for record in caplog.records]
    assert "nothing limits the fleet" in said
    assert ("newer server" in said) == (status is RPCStatusCode.UNIMPLEMENTED)
    house.limits.failing = None
    await house.keeper.keep()
    assert house.limits.limits["inference.a"].turns_per_second == 0.2


async def test_a_server_that_can_set_no_limit_is_no_news_where_none_is_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    house.limits.failing = RPCError("unknown method", RPCStatusCode.UNIMPLEMENTED, b"")
    with caplog.at_level(logging.WARNING):
        await house.keeper.keep()
    assert caplog.records == []


async def test_the_rates_are_shown_per_model_and_queue() -> None:
    house = House(models={"a": {"requests_per_second": 20}}, requests_per_second=50)
    await house.keeper.keep()
    assert (house.shown("a", "inference.a"), house.shown("", "dispatch")) == (20, 30)
    await house.change("a", 0)
    assert (house.shown("a", "inference.a"), house.shown("", "dispatch")) == (None, 50)
