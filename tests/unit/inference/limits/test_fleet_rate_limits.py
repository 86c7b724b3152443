"""The rate limits in effect: from settings and the database, and changed at run time.

They stay in effect while the database is unavailable.
"""

import logging
from datetime import UTC, datetime

import pytest

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.rules.limits.rate_allocation import ALL_MODELS, RatesConflict, pacing_for
from batchwright.settings import load
from tests.fakes.memory_database import MemoryDatabase

OWN = {"models": {"a": {"requests_per_second": 20}}}


class FleetRatesFixture:
    def __init__(self, **settings: object) -> None:
        self.database = MemoryDatabase()
        self.served = frozenset({"a", "b"})
        self.rates = FleetRates(
            load(**settings), self.database.rates, lambda: self.served, unavailable=DatabaseUnavailable
        )

    async def change(self, model: str, rate: float | None) -> None:
        def anything(changes: list[RateChange]) -> None: ...

        await self.database.rates.change(model, rate, datetime.now(UTC), anything)


async def test_before_the_first_poll_the_settings_are_in_effect() -> None:
    assert FleetRatesFixture(**OWN).rates.pacing_of("a") == pacing_for(20)
    assert FleetRatesFixture(**OWN).rates.pacing_of("b") is None


async def test_a_change_and_its_removal_are_followed() -> None:
    fleet_rates = FleetRatesFixture(**OWN)
    await fleet_rates.change("a", 5)
    await fleet_rates.change("b", 0.5)
    await fleet_rates.rates.refresh()
    assert (fleet_rates.rates.pacing_of("a"), fleet_rates.rates.pacing_of("b")) == (
        pacing_for(5),
        pacing_for(0.5),
    )
    await fleet_rates.change("a", None)
    await fleet_rates.rates.refresh()
    assert fleet_rates.rates.pacing_of("a") == pacing_for(20)


async def test_models_without_a_rate_of_their_own_share_what_is_left() -> None:
    fleet_rates = FleetRatesFixture(**OWN, requests_per_second=50)
    await fleet_rates.rates.refresh()
    assert fleet_rates.rates.pacing_of("b") == pacing_for(30)
    assert (fleet_rates.rates.queue_of("a"), fleet_rates.rates.queue_of("b")) == ("", "dispatch")
    assert fleet_rates.rates.in_effect() == [
        ("a", "inference.a", pacing_for(20)),
        (ALL_MODELS, "dispatch", pacing_for(30)),
    ]


async def test_the_rate_of_an_unserved_model_is_left_to_the_others() -> None:
    fleet_rates = FleetRatesFixture(**OWN, requests_per_second=50)
    fleet_rates.served = frozenset({"b"})
    await fleet_rates.rates.refresh()
    assert fleet_rates.rates.pacing_of("b") == pacing_for(50)


async def test_while_no_model_is_known_the_remaining_rate_is_conservative() -> None:
    fleet_rates = FleetRatesFixture(**OWN, requests_per_second=50)
    fleet_rates.served = frozenset()
    await fleet_rates.rates.refresh()
    assert fleet_rates.rates.queues() == {"dispatch": pacing_for(30)}


async def test_an_unavailable_database_changes_no_rate(caplog: pytest.LogCaptureFixture) -> None:
    fleet_rates = FleetRatesFixture()
    await fleet_rates.change("a", 5)
    assert await fleet_rates.rates.try_refresh()
    fleet_rates.database.rows.failing = DatabaseUnavailable("away")
    with caplog.at_level(logging.WARNING):
        assert not await fleet_rates.rates.try_refresh()
        assert not await fleet_rates.rates.try_refresh()
    assert fleet_rates.rates.pacing_of("a") == pacing_for(5)
    assert [record.getMessage() for record in caplog.records] == [
        "rates cannot be read: the last known rates stay in effect"
    ]


async def test_changes_that_conflict_with_the_settings_are_ignored() -> None:
    fleet_rates = FleetRatesFixture(**OWN)
    await fleet_rates.change(ALL_MODELS, 10)
    with pytest.raises(RatesConflict):
        await fleet_rates.rates.refresh()
    assert not await fleet_rates.rates.try_refresh()
    assert fleet_rates.rates.pacing_of("b") is None


async def test_the_queue_of_a_slice_is_decided_only_with_fresh_rates() -> None:
    fleet_rates = FleetRatesFixture(requests_per_second=50)
    assert await fleet_rates.rates.other_queue("b", "inference.b") == "dispatch"
    assert await fleet_rates.rates.other_queue("b", "dispatch") == ""
    await fleet_rates.change(ALL_MODELS, 0)
    assert await fleet_rates.rates.other_queue("b", "inference.b") == ""
    assert await fleet_rates.rates.other_queue("b", "dispatch") == "inference.b"


async def test_no_slice_moves_while_the_rates_cannot_be_read() -> None:
    fleet_rates = FleetRatesFixture(requests_per_second=50)
    fleet_rates.database.rows.failing = DatabaseUnavailable("away")
    assert await fleet_rates.rates.other_queue("b", "inference.b") == ""
