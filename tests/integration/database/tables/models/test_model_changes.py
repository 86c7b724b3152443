"""Run-time changes of models.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange
from batchwright.database.database import Database
from batchwright.database.errors import VersionConflict
from tests.integration.database.rows import START, after

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


def shown(changes: list[ModelChange]) -> list[ModelChange]:
    """Return the changes without their versions."""
    return [row.model_copy(update={"version": 0}) for row in changes]


async def test_a_model_is_registered_replaced_removed_and_reverted(any_database: Database) -> None:
    changes = any_database.model_changes
    assert await changes.all() == []
    await changes.put("b", ONE, START, anything)
    assert shown(await changes.all()) == [change("b", ONE)]
    assert shown(await changes.put("B", TWO, START, anything)) == [change("B", TWO), change("b", ONE)]
    assert shown(await changes.put("b", TWO, after(1), anything)) == [change("B", TWO), change("b", TWO, 1)]
    taken = await changes.put("B", None, after(2), anything)
    assert shown(taken) == [change("B", None, 2), change("b", TWO, 1)]
    assert shown(await changes.revert("B", anything)) == [change("b", TWO, 1)]
    assert await changes.revert("B", anything) == await changes.all()
    assert shown(await changes.all()) == [change("b", TWO, 1)]


async def test_a_change_that_is_not_allowed_changes_nothing(any_database: Database) -> None:
    await any_database.model_changes.put("a", ONE, START, at_most_one)
    with pytest.raises(ValueError, match="two are too many"):
        await any_database.model_changes.put("b", None, START, at_most_one)
    assert shown(await any_database.model_changes.all()) == [change("a", ONE)]


async def test_changes_at_once_see_each_other(any_database: Database) -> None:
    changes_at_once = (any_database.model_changes.put(f"m{n}", TWO, START, at_most_one) for n in range(5))
    answers = await asyncio.gather(*changes_at_once, return_exceptions=True)
    assert sum(isinstance(answer, ValueError) for answer in answers) == 4
    assert len(await any_database.model_changes.all()) == 1


async def test_a_patch_is_kept_as_it_is_and_an_empty_one_reverts(any_database: Database) -> None:
    changes = any_database.model_changes
    seen: list[ModelChange | None] = []

    def merge(present: ModelChange | None) -> dict[str, JsonValue]:
        seen.append(present)
        return {"limits": {"in_flight": 8}, "aliases": ["\u00fc"]}

    [row] = await changes.patch("a", merge, START, anything)
    assert (row.config, row.patch) == (None, {"limits": {"in_flight": 8}, "aliases": ["\u00fc"]})
    assert not row.is_removal
    [again] = await changes.patch("a", merge, START, anything)
    assert seen == [None, row]
    [whole] = await changes.patch("a", lambda present: ONE, START, anything)
    assert (whole.config, whole.patch) == (ONE, None)
    assert row.version < again.version < whole.version
    assert await changes.patch("a", lambda present: {}, START, anything) == []
    [removed] = await changes.put("a", None, START, anything)
    assert removed.is_removal
    assert removed.version > whole.version, "a version never comes back"


@pytest.mark.parametrize("how", ["put", "remove", "patch", "empty", "revert"])
async def test_a_change_that_expects_another_version_changes_nothing(
    any_database: Database, how: str
) -> None:
    changes = any_database.model_changes

    async def action(*expected: int) -> list[ModelChange]:
        match how:
            case "put":
                return await changes.put("a", TWO, START, anything, expected)
            case "remove":
                return await changes.put("a", None, START, anything, expected)
            case "patch":
                return await changes.patch("a", lambda present: {"aliases": []}, START, anything, expected)
            case "empty":
                return await changes.patch("a", lambda present: {}, START, anything, expected)
            case _:
                return await changes.revert("a", anything, expected)

    with pytest.raises(VersionConflict) as missing:
        await action(7)
    assert missing.value.present == 0
    before = await changes.put("a", ONE, START, anything, [0])
    present = before[0].version
    for wrong in (0, present + 1):
        with pytest.raises(VersionConflict) as conflict:
            await action(wrong)
        assert conflict.value.present == present
    assert await changes.all() == before
    await action(0, present)
    assert await changes.all() != before


async def test_of_concurrent_changes_that_expect_the_same_version_one_succeeds(
    any_database: Database,
) -> None:
    changes = any_database.model_changes
    [row] = await changes.put("a", ONE, START, anything)
    changes_at_once = (changes.put("a", TWO, after(n), anything, [row.version]) for n in range(5))
    answers = await asyncio.gather(*changes_at_once, return_exceptions=True)
    assert sum(isinstance(answer, VersionConflict) for answer in answers) == 4


async def test_concurrent_patches_are_all_kept(any_database: Database) -> None:
    changes = any_database.model_changes

    def adding(name: str) -> Callable[[ModelChange | None], dict[str, JsonValue]]:
        return lambda present: {**((present and present.patch) or {}), name: [name]}

    names = ["aliases", "fallbacks", "x", "y", "z"]
    await asyncio.gather(*(changes.patch("a", adding(name), START, anything) for name in names))
    [row] = await changes.all()
    assert row.patch == {name: [name] for name in names}
