"""What a starting worker waits for, and what it does not."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import RateChange
from batchwright.inference.rates import FleetRates
from batchwright.settings import Settings, SettingsError, load
from worker.connecting import check_rates


class Table:
    """Cannot be read at first."""

    def __init__(self, failures: int, changes: Sequence[RateChange]) -> None:
        self.failures, self.changes = failures, changes

    async def all(self) -> Sequence[RateChange]:
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable("PostgreSQL starts again")
        return self.changes


def rates(settings: Settings, failures: int, *changes: RateChange) -> FleetRates:
    return FleetRates(
        settings, Table(failures, changes), lambda: frozenset[str](), unavailable=DatabaseUnavailable
    )


async def test_a_database_that_starts_again_just_before_the_rates_are_read_is_waited_for() -> None:
    settings = load()
    changed = RateChange(model="a", requests_per_second=2, changed_at=datetime.now(UTC))
    found = rates(settings, 1, changed)
    await check_rates(settings, found)
    pacing = found.pacing_of("a")
    assert pacing is not None
    assert pacing.requests_per_second == 2


async def test_a_database_that_stays_away_is_given_up_after_a_while() -> None:
    settings = load(startup_seconds=0)
    with pytest.raises(DatabaseUnavailable):
        await check_rates(settings, rates(settings, 10))


async def test_rates_that_do_not_fit_are_not_waited_for() -> None:
    settings = load(requests_per_second=10)
    taken = RateChange(model="a", requests_per_second=10, changed_at=datetime.now(UTC))
    with pytest.raises(SettingsError, match="batchwright rates"):
        await check_rates(settings, rates(settings, 0, taken))
