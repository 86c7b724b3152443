"""What every database promises of models changed at run time; `any_database` runs it on each."""

import asyncio

import pytest

from batchwright.contracts.registry import ModelConfig
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import ModelChange
from tests.integration.rows import START, after

ONE = ModelConfig.model_validate(
    {
        "backends": [
            {"url": "http://one/v1", "weight": 2, "request_timeout": "5m", "headers": {"X-Team": "a"}}
        ],
        "aliases": ["gpt", "\u00fc"],
        "retries": {"give_up_after": 0},
    }
)
TWO = ModelConfig.model_validate({"backends": [{"url": "http://two", "model": "org/two"}]})


def anything(changes: list[ModelChange]) -> None: ...


def at_most_one(changes: list[ModelChange]) -> None:
    if len(changes) > 1:
        raise ValueError("two are too many")


def change(model: str, config: ModelConfig | None, seconds: int = 0) -> ModelChange:
    return ModelChange(model=model, config=config, changed_at=after(seconds))


async def test_a_model_is_registered_replaced_taken_away_and_reverted(any_database: DatabaseLike) -> None:
    changes = any_database.model_changes
    assert await changes.all() == []
    await changes.put("b", ONE, START, anything)
    assert await changes.all() == [change("b", ONE)]
    assert await changes.put("B", TWO, START, anything) == [change("B", TWO), change("b", ONE)]
    assert await changes.put("b", TWO, after(1), anything) == [change("B", TWO), change("b", TWO, 1)]
    assert await changes.put("B", None, after(2), anything) == [change("B", None, 2), change("b", TWO, 1)]
    assert await changes.revert("B", anything) == [change("b", TWO, 1)]
    assert await changes.revert("B", anything) == await changes.all() == [change("b", TWO, 1)]


async def test_a_change_that_is_not_allowed_changes_nothing(any_database: DatabaseLike) -> None:
    await any_database.model_changes.put("a", ONE, START, at_most_one)
    with pytest.raises(ValueError, match="two are too many"):
        await any_database.model_changes.put("b", None, START, at_most_one)
    assert await any_database.model_changes.all() == [change("a", ONE)]


async def test_changes_at_once_see_each_other(any_database: DatabaseLike) -> None:
    asked = (any_database.model_changes.put(f"m{n}", TWO, START, at_most_one) for n in range(5))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, ValueError) for answer in answers) == 4
    assert len(await any_database.model_changes.all()) == 1
