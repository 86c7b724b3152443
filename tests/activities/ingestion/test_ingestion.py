"""Ingestion plans every line once, or rejects it with a reason, even if earlier attempts wrote
some objects.
"""

import threading
from array import array
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.activities.ingestion import publisher
from batchwright.activities.ingestion.scanner import line_limits
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.ingestion import IngestResult, ModelShare
from batchwright.contracts.terms import BatchStatus, Endpoint, Profile, ValidationError
from batchwright.rules import growing_bytes
from batchwright.rules.input import custom_id_uniqueness
from batchwright.rules.input.input_validator import validate
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.rules.planning.plan_format import PlanEntry, SliceRecord
from batchwright.rules.planning.prefix_order import ModelLines, PlanLine, ReadLine
from batchwright.settings import load
from batchwright.storage.base import ObjectWriter
from batchwright.storage.spill import spilled_bytes
from tests.activities.ingestion.fresh_batch import (
    FILE_ID,
    INPUT_KEY,
    TENANT,
    FreshBatch,
    a_batch,
    a_line,
)
from tests.fakes.rates import FixedRates


async def test_each_model_gets_its_plan_shard_and_slices() -> None:
    batch = await a_batch(a_line("1", "b"), a_line("2", "org/a:1"), a_line("3", "b"), served=("b", "org/a:1"))
    result = await batch.ingest()
    safe = result.models[1].safe_model
    assert result == IngestResult(
        ingest_prefix=result.ingest_prefix,
        models=[
            ModelShare(model="b", safe_model="b", lines=2, slices=1),
            ModelShare(model="org/a:1", safe_model=safe, lines=1, slices=1),
        ],
        total=3,
    )
    assert batch.shard(result, result.models[0]) == a_line("1", "b") + b"\n" + a_line("3", "b") + b"\n"
    assert batch.shard(result, result.models[1]) == a_line("2", "org/a:1") + b"\n"
    assert msgspec.to_builtins(batch.model_map(result)) == {
        "model_to_safe": {"b": "b", "org/a:1": safe},
        "safe_to_model": {"b": "b", safe: "org/a:1"},
        "line_count": 3,
    }


@pytest.mark.parametrize("order", ["prefix", "file"])
async def test_the_plan_is_the_same_if_its_rows_are_on_disk(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(1)
    lines = [
        a_line(str(number), random.choice("ab"), str(random.random()), random.choice(["kind", "brief"]))
        for number in range(400)
    ]

    async def planned() -> list[tuple[list[PlanEntry], bytes, list[SliceRecord]]]:
        batch = await a_batch(*lines, plan_order=order)
        result = await batch.ingest()
        return [
            (batch.plan(result, share), batch.shard(result, share), batch.slices(result, share))
            for share in result.models
        ]

    in_memory = await planned()
    monkeypatch.setattr(spilled_bytes, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1_000)
    monkeypatch.setattr(growing_bytes, "_RUN_ROWS", 50)
    monkeypatch.setattr(custom_id_uniqueness, "_MAX_IN_TABLE", 10)
    monkeypatch.setattr(publisher, "_PIECE_BYTES", 1_000)
    assert await planned() == in_memory


async def test_lines_are_sorted_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    in_order, threads = ModelLines.in_order, list[threading.Thread]()

    def recorded(lines: ModelLines, ranks: "array[int]", read_line: ReadLine) -> Iterator[PlanLine]:
        threads.append(threading.current_thread())
        return in_order(lines, ranks, read_line)

    monkeypatch.setattr(ModelLines, "in_order", recorded)
    batch = await a_batch(a_line("1"), a_line("2", "b"))
    await batch.ingest()
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_a_repeated_id_beyond_the_table_in_memory_fails_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom_id_uniqueness, "_MAX_IN_TABLE", 1)
    batch = await a_batch(a_line("1"), a_line("2"), a_line("3"), a_line("2"))
    result = await batch.ingest()
    assert result.failed
    assert [(error.code, error.line) for error in (await batch.row()).errors] == [("duplicate_custom_id", 4)]


@pytest.mark.parametrize(("many", "at_once"), [(4, 3), (3, 1)])
async def test_plans_of_a_few_models_are_written_concurrently_unless_the_input_is_very_large(
    many: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await a_batch(*(a_line(model, model) for model in "abc"), served=("a", "b", "c"))
    monkeypatch.setattr("batchwright.activities.ingestion.publisher._LARGE_INPUT_LINES", many)
    writer, written = batch.storage.writer, list[int]()

    @asynccontextmanager
    async def counted(key: str) -> AsyncGenerator[ObjectWriter]:
        written.append(1)
        async with writer(key) as one:
            yield one
        written.append(-1)

    monkeypatch.setattr(batch.storage, "writer", counted)
    assert len((await batch.ingest()).models) == 3
    assert max(accumulate(written)) == at_once


async def test_the_row_is_in_progress_with_the_models_lines() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "nobody's"), a_line("3"))
    await batch.ingest()
    row = await batch.row()
    assert (row.status, row.total, row.completed, row.failed) == (BatchStatus.IN_PROGRESS, 3, 0, 1)
    assert row.models == [
        ModelCounts(model="a", lines=2),
        ModelCounts(model="nobody's", lines=1, failed=1),
    ]


async def test_slices_are_cut_at_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_SLICE_LINES", 2)
    lines = [a_line(str(number)) for number in range(5)]
    size = len(lines[0]) + 1
    batch = await a_batch(*lines)
    result = await batch.ingest()
    assert batch.slices(result, result.models[0]) == [
        SliceRecord(number=0, first_entry=0, shard_offset=0, entries=2, shard_bytes=2 * size, work_units=4),
        SliceRecord(
            number=1, first_entry=2, shard_offset=2 * size, entries=2, shard_bytes=2 * size, work_units=4
        ),
        SliceRecord(
            number=2, first_entry=4, shard_offset=4 * size, entries=1, shard_bytes=size, work_units=2
        ),
    ]


async def test_slices_of_a_model_with_a_rate_are_whole_turns_and_go_to_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "MIN_LARGE_SLICE_LINES", 5)
    lines = [a_line(str(n)) for n in range(9)]
    batch = await a_batch(*lines, rates=FixedRates(Pacing(0.4, 2), belongs="dispatch"))
    [share] = (result := await batch.ingest()).models
    assert (share.slices, share.queue) == (3, "dispatch")
    assert [record.entries for record in batch.slices(result, share)] == [4, 4, 1]


async def test_slices_of_a_model_with_a_rate_are_not_the_large_ones() -> None:
    lines = [a_line(str(n)) for n in range(5000)]
    batch = await a_batch(*lines, rates=FixedRates(Pacing(20.0, 100)))
    [share] = (result := await batch.ingest()).models
    assert {record.entries for record in batch.slices(result, share)} == {200}


async def test_equal_prefixes_are_dispatched_together() -> None:
    lines = [a_line(str(number), system="cold" if number % 2 else "warm") for number in range(6)]
    batch = await a_batch(*lines)
    result = await batch.ingest()
    shard = batch.shard(result, result.models[0]).splitlines()
    assert shard == [lines[n] for n in (1, 3, 5, 0, 2, 4)]


async def test_a_batch_can_be_dispatched_in_file_order() -> None:
    lines = [a_line(str(number), text=text) for number, text in enumerate("cab")]
    batch = await a_batch(*lines, plan_order="file")
    result = await batch.ingest()
    assert batch.shard(result, result.models[0]).splitlines() == lines


REQUESTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["", "x" * 50 + "1", "x" * 50, "ä"])),
    min_size=1,
    max_size=12,
)


@given(
    requests=REQUESTS,
    ending=st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]),
    order=st.sampled_from(["prefix", "hash", "file"]),
    mark=st.booleans(),
)
async def test_every_line_is_planned_once_or_settled(
    requests: list[tuple[str, str]], ending: bytes, order: str, mark: bool
) -> None:
    lines = [a_line(str(n), model, text) for n, (model, text) in enumerate(requests)]
    batch = FreshBatch(*lines, ending=ending, served=("a", "b"), plan_order=order)
    batch.input = b"\xef\xbb\xbf" * mark + batch.input
    await batch.upload()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(publisher, "MAX_SLICE_LINES", 3)
        result = await batch.ingest()
    found = [record.offset for record in batch.unserved(result)]
    for share in result.models:
        plan = batch.plan(result, share)
        assert batch.shard(result, share) == b"".join(batch.line_at(entry) for entry in plan)
        assert sum(record.entries for record in batch.slices(result, share)) == len(plan) == share.lines
        found += [entry.offset for entry in plan]
    assert sorted(found) == [batch.input.index(b'{"custom_id": "%d"' % n) for n in range(len(lines))]
    assert (result.total, result.unserved) == (len(lines), len(batch.unserved(result)))


# Models that are not served


# Inputs that do not validate


async def test_every_bad_line_is_reported_and_nothing_is_written() -> None:
    batch = await a_batch(a_line("1"), b"{", b"", a_line("1"))
    assert await batch.ingest() == IngestResult(failed=True, total=3, error_count=2)
    row = await batch.row()
    assert (row.status, row.total) == (BatchStatus.FAILED, 3)
    assert [(error.code, error.line) for error in row.errors] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 4),
    ]
    assert batch.written() == []


async def test_the_batch_s_own_profile_counts() -> None:
    batch = await a_batch(a_line("1"), profile=Profile.STRICT)
    await batch.ingest()
    assert [error.param for error in (await batch.row()).errors] == ["method", "url"]


@pytest.mark.parametrize("owner", [None, "another"])
async def test_a_file_of_another_tenant_is_not_found(owner: str | None) -> None:
    batch = FreshBatch(a_line("1"))
    if owner:
        await batch.upload(tenant=owner)
    assert await batch.ingest() == IngestResult(failed=True, error_count=1)
    message = f"Cannot find file {FILE_ID}, or organization {TENANT} does not have access to it."
    error = ValidationError(code="invalid_request", message=message, param="file_id")
    assert (await batch.row()).errors == [error]


async def test_a_file_whose_object_is_missing_is_not_found() -> None:
    batch = await a_batch(a_line("1"))
    del batch.storage.objects[INPUT_KEY]
    assert (await batch.ingest()).failed
    assert [error.param for error in (await batch.row()).errors] == ["file_id"]


async def test_a_file_beyond_the_limit_is_not_read() -> None:
    batch = await a_batch(a_line("1"), max_batch_file_bytes=10)
    batch.storage.objects.clear()
    await batch.ingest()
    (error,) = (await batch.row()).errors
    assert (error.code, error.param) == ("invalid_request", "file_id")
    assert "at most 10" in error.message


async def test_more_lines_than_allowed_fail_the_batch() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), max_lines=1)
    await batch.ingest()
    assert [error.code for error in (await batch.row()).errors] == ["too_many_tasks"]


def test_an_input_can_be_validated_without_a_batch() -> None:
    content = [a_line("1") + b"\n", b"{}\n"]
    report = validate(content, Endpoint.CHAT_COMPLETIONS, line_limits(load()), Profile.RELAXED)
    assert (report.lines, report.models, report.valid) == (2, {"a": 1}, False)
    assert [(error.param, error.line) for error in report.errors] == [("custom_id", 2), ("body", 2)]
