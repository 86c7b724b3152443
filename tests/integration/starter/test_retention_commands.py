"""`batchwright retention`: the commands that need no worker."""

import json
from pathlib import Path

import pytest

from batchwright.contracts.temporal_payloads.retention import RetentionKind
from batchwright.database.database import Database
from batchwright.rules.stored_objects.object_keys import DATABASE_MARK
from batchwright.starter.embedded_stack.ports import free_port
from tests.integration.starter.commands import batchwright

pytestmark = pytest.mark.integration


async def test_retention_status_shows_when_each_kind_last_succeeded(database_url: str) -> None:
    plain = await batchwright("retention", "show", database_url=database_url)
    shown = await batchwright("retention", "show", "--json", database_url=database_url)
    assert [line.split()[0] for line in plain.stdout] == ["kind", *RetentionKind]
    assert [one["kind"] for one in json.loads(shown.stdout[0])["kinds"]] == list(RetentionKind)


async def test_adopt_takes_over_a_storage_of_any_owner(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / DATABASE_MARK).write_text("another")
    settings = {"database_url": database_url, "storage_dir": str(tmp_path)}
    assert await batchwright("retention", "adopt", **settings) == (
        0,
        ["The storage belongs to this database."],
        "",
    )
    mark = await database.retention.mark()
    assert (tmp_path / DATABASE_MARK).read_text() == mark.id
    assert mark.marked_at is not None


async def test_a_service_that_does_not_answer_is_named() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    ran = await batchwright("retention", "run", temporal_address=nowhere)
    shown = await batchwright("retention", "show", database_url=f"postgresql://{nowhere}/x")
    assert (ran.code, shown.code) == (3, 3)
    assert nowhere in ran.stderr
    assert nowhere in shown.stderr
