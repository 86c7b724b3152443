"""Lines that name a model by an alias."""

import json

from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from tests.activities.ingestion.fresh_batch import a_batch, a_line

ALIASES = {"short": "a", "also": "a"}


async def test_lines_of_an_alias_are_planned_with_those_of_its_model() -> None:
    lines = [a_line("1", "short"), a_line("2", "a"), a_line("3", "b"), a_line("4", "also")]
    batch = await a_batch(*lines, aliases=ALIASES, plan_order="file")
    result = await batch.ingest()
    assert [(share.model, share.lines) for share in result.models] == [("a", 3), ("b", 1)]
    assert batch.shard(result, result.models[0]).splitlines() == [lines[0], lines[1], lines[3]]


async def test_the_batch_counts_an_alias_as_its_model() -> None:
    batch = await a_batch(a_line("1", "short"), a_line("2", "nobody's"), aliases=ALIASES)
    result = await batch.ingest()
    assert result.models == [ModelShare(model="a", safe_model="a", lines=1, slices=1)]
    row = await batch.row()
    assert {count.model: (count.lines, count.failed) for count in row.models} == {
        "a": (1, 0),
        "nobody's": (1, 1),
    }


async def test_equal_prefixes_are_dispatched_together_under_any_alias() -> None:
    names = ["short", "a", "also", "a"]
    lines = [a_line(str(n), name, system="cold" if n % 2 else "warm") for n, name in enumerate(names)]
    batch = await a_batch(*lines, aliases=ALIASES)
    result = await batch.ingest()
    planned = [json.loads(line)["custom_id"] for line in batch.shard(result, result.models[0]).splitlines()]
    assert planned in (["0", "2", "1", "3"], ["1", "3", "0", "2"])
