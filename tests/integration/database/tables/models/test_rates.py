"""Rate limits that operators change at run time.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio

import pytest

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.database.database import Database
from tests.integration.database.rows import START, after


def anything(changes: list[RateChange]) -> None: ...


def at_most_one(changes: list[RateChange]) -> None:
    if len(changes) > 1:
        raise ValueError("two are too many")


def change(model: str, rate: float, seconds: int = 0) -> RateChange:
    return RateChange(model=model, requests_per_second=rate, changed_at=after(seconds))


async def test_a_rate_is_set_replaced_and_removed(any_database: Database) -> None:
    rates = any_database.rates
    assert await rates.all() == []
    await rates.change("b", 2.5, START, anything)
    assert await rates.change("", 50, START, anything) == [change("", 50), change("b", 2.5)]
    assert await rates.change("b", 0, after(1), anything) == [change("", 50), change("b", 0, 1)]
    assert await rates.change("", None, after(2), anything) == [change("b", 0, 1)]
    assert await rates.change("", None, after(3), anything) == await rates.all() == [change("b", 0, 1)]


async def test_a_change_that_is_not_allowed_changes_nothing(any_database: Database) -> None:
    await any_database.rates.change("a", 1, START, at_most_one)
    with pytest.raises(ValueError, match="two are too many"):
        await any_database.rates.change("b", 2, START, at_most_one)
    assert await any_database.rates.all() == [change("a", 1)]


async def test_changes_at_once_see_each_other(any_database: Database) -> None:
    changes_at_once = (any_database.rates.change(f"m{n}", 1, START, at_most_one) for n in range(5))
    answers = await asyncio.gather(*changes_at_once, return_exceptions=True)
    assert sum(isinstance(answer, ValueError) for answer in answers) == 4
    assert len(await any_database.rates.all()) == 1
