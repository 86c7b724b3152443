"""The rates in effect: settings and table, followed, and kept while the table cannot be read."""

import logging
from datetime import UTC, datetime

import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import RateChange
from batchwright.inference.rates import FleetRates
from batchwright.rules.rates import ALL_MODELS, RatesConflict, pacing
from batchwright.settings import load
from tests.fakes.database import MemoryDatabase

OWN = {"models": {"a": {"requests_per_second": 20}}}


class House:
    def __init__(self, **settings: object) -> None:
        self.database = MemoryDatabase()
        self.served = frozenset({"a", "b"})
        self.rates = FleetRates(
            load(**settings), self.database.rates, lambda: self.served, unavailable=DatabaseUnavailable
        )

    async def change(self, model: str, rate: float | None) -> None:
        def anything(changes: list[RateChange]) -> None: ...

        await self.database.rates.change(model, rate, datetime.now(UTC), anything)


async def test_before_a_first_look_the_settings_hold() -> None:
    assert House(**OWN).rates.pacing_of("a") == pacing(20, 256)
    assert House(**OWN).rates.pacing_of("b") is None


async def test_a_change_is_followed_and_so_is_its_end() -> None:
    house = House(**OWN)
    await house.change("a", 5)
    await house.change("b", 0.5)
    await house.rates.refresh()
    assert (house.rates.pacing_of("a"), house.rates.pacing_of("b")) == (pacing(5, 256), pacing(0.5, 256))
    await house.change("a", None)
    await house.rates.refresh()
    assert house.rates.pacing_of("a") == pacing(20, 256)


async def test_models_without_a_rate_of_their_own_share_what_is_left() -> None:
    house = House(**OWN, requests_per_second=50)
    await house.rates.refresh()
    assert house.rates.pacing_of("b") == pacing(30, 256)
    assert (house.rates.queue_of("a"), house.rates.queue_of("b")) == ("", "dispatch")
    assert house.rates.in_effect() == [
        ("a", "inference.a", pacing(20, 256)),
        (ALL_MODELS, "dispatch", pacing(30, 256)),
    ]


async def test_what_a_model_nobody_serves_would_need_is_left_to_the_others() -> None:
    house = House(**OWN, requests_per_second=50)
    house.served = frozenset({"b"})
    await house.rates.refresh()
    assert house.rates.pacing_of("b") == pacing(50, 256)


async def test_while_no_model_is_known_rather_too_little_is_left() -> None:
    house = House(**OWN, requests_per_second=50)
    house.served = frozenset()
    await house.rates.refresh()
    assert house.rates.queues() == {"dispatch": pacing(30, 256)}


async def test_a_database_that_is_away_takes_no_rate_away(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    await house.change("a", 5)
    assert await house.rates.look()
    house.database.rows.failing = DatabaseUnavailable("away")
    with caplog.at_level(logging.WARNING):
        assert not await house.rates.look()
        assert not await house.rates.look()
    assert house.rates.pacing_of("a") == pacing(5, 256)
    assert [record.getMessage() for record in caplog.records] == ["the last known rates are kept"]


async def test_changes_that_do_not_fit_the_settings_are_not_taken() -> None:
    house = House(**OWN)
    await house.change(ALL_MODELS, 10)
    with pytest.raises(RatesConflict):
        await house.rates.refresh()
    assert not await house.rates.look()
    assert house.rates.pacing_of("b") is None


async def test_where_a_slice_belongs_is_told_only_after_reading_the_rates_afresh() -> None:
    house = House(requests_per_second=50)
    assert await house.rates.elsewhere("b", "inference.b") == "dispatch"
    assert await house.rates.elsewhere("b", "dispatch") == ""
    await house.change(ALL_MODELS, 0)
    assert await house.rates.elsewhere("b", "inference.b") == ""
    assert await house.rates.elsewhere("b", "dispatch") == "inference.b"


async def test_no_slice_moves_while_the_rates_cannot_be_read() -> None:
    house = House(requests_per_second=50)
    house.database.rows.failing = DatabaseUnavailable("away")
    assert await house.rates.elsewhere("b", "inference.b") == ""
