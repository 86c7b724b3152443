"""`batchwright retention`: what of it needs no worker."""

import json
from pathlib import Path

import pytest

from batchwright.contracts.retention import Kind
from batchwright.database.pool import Database
from batchwright.rules.keys import DATABASE_MARK
from starter.stack.ports import free_port
from tests.integration.commands import batchwright

pytestmark = pytest.mark.integration


async def test_it_shows_when_each_kind_last_succeeded(database_url: str) -> None:
    plain = await batchwright("retention", "show", database_url=database_url)
    shown = await batchwright("retention", "show", "--json", database_url=database_url)
    assert [line.split()[0] for line in plain.said] == ["kind", *Kind]
    assert [one["kind"] for one in json.loads(shown.said[0])["kinds"]] == list(Kind)


async def test_a_storage_is_adopted_whosever_it_was(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / DATABASE_MARK).write_text("another")
    told = {"database_url": database_url, "storage_dir": str(tmp_path)}
    assert await batchwright("retention", "adopt", **told) == (
        0,
        ["The storage belongs to this database."],
        "",
    )
    mark = await database.retention.mark()
    assert (tmp_path / DATABASE_MARK).read_text() == mark.id
    assert mark.marked_at is not None


async def test_it_says_what_does_not_answer() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    ran = await batchwright("retention", "run", temporal_address=nowhere)
    shown = await batchwright("retention", "show", database_url=f"postgresql://{nowhere}/x")
    assert (ran.code, shown.code) == (3, 3)
    assert nowhere in ran.complained
    assert nowhere in shown.complained
