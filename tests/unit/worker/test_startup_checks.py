"""The check of rate limits when a worker starts: it retries if the database is unavailable, and fails on a
conflict.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.errors import DatabaseUnavailable
from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.settings import Settings, SettingsError, load
from batchwright.worker.dependency_checks import check_rates


class Table:
    """A table of rates that cannot be read the first `failures` times."""

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
    await check_rates(found)
    pacing = found.pacing_of("a")
    assert pacing is not None
    assert pacing.requests_per_second == 2


async def test_the_start_fails_if_the_database_stays_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.worker.dependency_checks.STARTUP_SECONDS", 0)
    with pytest.raises(DatabaseUnavailable):
        await check_rates(rates(load(), 10))


async def test_conflicting_rates_fail_the_start_at_once() -> None:
    settings = load(requests_per_second=10)
    taken = RateChange(model="a", requests_per_second=10, changed_at=datetime.now(UTC))
    with pytest.raises(SettingsError, match="batchwright rates"):
        await check_rates(rates(settings, 0, taken))
