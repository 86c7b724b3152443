"""Duplicate requests of a batch are sent once. Each line gets the result, whether it is a success or a
failure.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.rules.ids import derived_file_id, request_id
from batchwright.rules.input.line_parser import read_request
from batchwright.rules.input.line_splitter import LineSplitter
from batchwright.rules.results.dead_letters import FinalAttempt
from batchwright.rules.results.output_lines import error_line, result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from tests.activities.finalization.finalized import finalized
from tests.activities.ingestion.fresh_batch import BATCH_ID, INPUT_KEY, TENANT, FreshBatch, a_line

TOKENS = Usage(input_tokens=3, output_tokens=2)


class Repetitive(FreshBatch):
    """A batch with repeated texts: line n has the custom_id "line-n", the n-th text, and the n-th model."""

    def __init__(self, *texts: str, models: str = "", deduplicate: bool = True) -> None:
        names = models or "a" * len(texts)
        lines = [
            a_line(f"line-{n}", model, text) for n, (model, text) in enumerate(zip(names, texts, strict=True))
        ]
        super().__init__(*lines, deduplicate=deduplicate)
        splitter = LineSplitter(10_000)
        self._lines = [*splitter.feed(self.input), *splitter.finish()]

    async def ingested(self) -> IngestResult:
        await self.upload()
        return await self.ingest()

    def offset(self, n: int) -> int:
        return self._lines[n].offset

    def planned(self, result: IngestResult) -> list[str]:
        """Return the custom_ids of the planned lines, in the order of the input."""
        entries = [entry for share in result.models for entry in self.plan(result, share)]
        offsets = {line.offset: line.data or b"" for line in self._lines}
        return [read_request(offsets[entry.offset])[0] for entry in sorted(entries)]

    async def settle(self, *numbers: int, code: int = 200, final: bool = False) -> None:
        """Store a result with the status `code` for each of these lines, as slices do.

        Args:
            code: HTTP status; `0` for a line that got no response.
            final: True if the lines also become dead letters (lines that failed for good).
        """
        writer = SegmentWriter()
        for n in numbers:
            if final:
                last = FinalAttempt(count=5, failed_at=1.0, custom_id=f"line-{n}", model="a", status=code)
                payload = last.model_dump_json().encode()
                writer.add(SegmentRecord(RecordKind.ATTEMPT, self.offset(n), payload, final=True))
            success = code == 200
            usage = TOKENS if success else Usage()
            writer.add(
                SegmentRecord(RecordKind.SETTLED, self.offset(n), self.answer(n, n, code), success, usage)
            )
        folder = object_keys.slice_results(TENANT, BATCH_ID, "a", 0)
        await self.storage.put(object_keys.segment(folder, 0, 1, "nonce", numbers[0]), writer.finish())

    def answer(self, n: int, to: int, code: int = 200) -> bytes:
        """Return line n as finalization must write it if it has the response to line `to`."""
        id = request_id(BATCH_ID, self.offset(n))
        body = b'{"to": %d,  "usage": {"prompt_tokens": 3, "completion_tokens": 2}}' % to
        if not code:
            return error_line(id, f"line-{n}", LineCode.REQUEST_TIMEOUT, "late")
        return result_line(id, f"line-{n}", status_code=code, backend_request_id="r", body=body)

    async def finalized(
        self,
        result: IngestResult,
        status: BatchStatus = BatchStatus.COMPLETED,
        code: LineCode = LineCode.BATCH_FAILED,
    ) -> FinalizeResult:
        return await finalized(self, result, status, code)

    async def file(self, kind: str) -> list[bytes]:
        row = await self.database.files.get(TENANT, derived_file_id(BATCH_ID, kind))
        return [] if row is None else (await self.storage.get(row.storage_key)).splitlines()


async def test_only_the_first_of_equal_lines_is_planned() -> None:
    batch = Repetitive("x", "y", "x", "x", "z", "y")
    result = await batch.ingested()
    assert batch.planned(result) == ["line-0", "line-1", "line-4"]
    [share] = result.models
    assert (share.lines, share.duplicates, result.total) == (3, 3, 6)
    row = await batch.row()
    assert (row.total, row.models) == (6, [ModelCounts(model="a", lines=6, duplicates=3)])


async def test_lines_of_different_models_are_different() -> None:
    batch = Repetitive("x", "x", "x", models="aba")
    result = await batch.ingested()
    assert batch.planned(result) == ["line-0", "line-1"]
    assert [(share.model, share.lines, share.duplicates) for share in result.models] == [
        ("a", 1, 1),
        ("b", 1, 0),
    ]


async def test_without_deduplication_every_line_is_sent() -> None:
    batch = Repetitive("x", "x", deduplicate=False)
    result = await batch.ingested()
    assert batch.planned(result) == ["line-0", "line-1"]
    assert result.models[0].duplicates == 0


async def test_only_lines_that_are_sent_are_enqueued() -> None:
    batch = Repetitive("x", "x", "x")
    await batch.database.quotas.change(TENANT, {"enqueued_lines": 1}, batch.order.created_at)
    assert not (await batch.ingested()).failed
    assert await batch.database.fleet.lines_left() == {"a": 1}
    [live] = await batch.database.fleet.live()
    assert (live.lines, live.settled) == (1, 0)


async def test_every_line_gets_the_answer_under_its_own_ids_and_tokens_count_once() -> None:
    batch = Repetitive("x", "y", "x", "x", "y")
    result = await batch.ingested()
    await batch.settle(0)
    await batch.settle(1, code=400)
    ended = await batch.finalized(result)
    assert ended == FinalizeResult(
        status=BatchStatus.COMPLETED,
        completed=3,
        failed=2,
        usage=TOKENS,
        failed_by_code={"http_400": 2},
    )
    assert await batch.file("output") == [batch.answer(0, 0), batch.answer(2, 0), batch.answer(3, 0)]
    assert await batch.file("error") == [batch.answer(1, 1, 400), batch.answer(4, 1, 400)]
    row = await batch.row()
    assert row.models == [ModelCounts(model="a", lines=5, completed=3, failed=2, duplicates=3)]
    assert batch.metrics.registry.get_sample_value("batchwright_duplicate_lines_total", {"model": "a"}) == 3


@pytest.mark.parametrize("status", [BatchStatus.EXPIRED, BatchStatus.CANCELLED])
async def test_a_duplicate_of_an_unsettled_line_is_unsettled(status: BatchStatus) -> None:
    batch = Repetitive("x", "y", "x", "y")
    result = await batch.ingested()
    await batch.settle(0)
    code = LineCode(f"batch_{status}")
    ended = await batch.finalized(result, status, code)
    assert (ended.completed, ended.failed) == (2, 2)
    errors = [json.loads(line) for line in await batch.file("error")]
    assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
        ("line-1", code),
        ("line-3", code),
    ]


async def test_finalization_does_not_read_the_input() -> None:
    batch = Repetitive("x", "x")
    result = await batch.ingested()
    await batch.settle(0)
    await batch.storage.delete(INPUT_KEY)
    assert (await batch.finalized(result)).completed == 2


async def test_finalizing_again_changes_nothing() -> None:
    batch = Repetitive("x", "x", "y")
    result = await batch.ingested()
    await batch.settle(0, 2)
    assert await batch.finalized(result) == await batch.finalized(result)
    assert len(await batch.file("output")) == 3


async def test_duplicates_of_a_dead_letter_are_dead_letters() -> None:
    batch = Repetitive("x", "y", "x")
    result = await batch.ingested()
    await batch.settle(0, code=500, final=True)
    await batch.settle(1)
    await batch.finalized(result)
    rows, _ = await batch.database.dead_letters.page(tenant=None, batch_id=None, limit=9, after=None)
    dead_letters = sorted(
        (row.dead_letter.offset, row.dead_letter.custom_id, row.dead_letter.attempts) for row in rows
    )
    assert dead_letters == [(batch.offset(0), "line-0", 5), (batch.offset(2), "line-2", 5)]


async def test_a_list_of_duplicates_with_missing_lines_is_refused() -> None:
    batch = Repetitive("x", "x", "x")
    result = await batch.ingested()
    await batch.settle(0)
    key = object_keys.duplicates(result.ingest_prefix, "a")
    data = await batch.storage.get(key)
    await batch.storage.put(key, data.splitlines(keepends=True)[0])
    with pytest.raises(ApplicationError) as refused:
        await batch.finalized(result)
    assert refused.value.type == Failure.PLAN_DAMAGED


@settings(max_examples=30)
@given(
    pairs=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("uvwxyz")), min_size=1, max_size=30),
    settled=st.sets(st.integers(0, 29)),
    failing=st.sets(st.integers(0, 29)),
)
async def test_every_duplicate_is_in_one_file_in_order_with_the_answer_of_the_first(
    pairs: list[tuple[str, str]], settled: set[int], failing: set[int]
) -> None:
    models = "".join(model for model, _ in pairs)
    batch = Repetitive(*(text for _, text in pairs), models=models)
    result = await batch.ingested()
    first = {pair: pairs.index(pair) for pair in pairs}
    assert len(batch.planned(result)) == len(first)
    for n in first.values():
        if n in settled:
            await batch.settle(n, code=400 if n in failing else 200)
    await batch.finalized(result, BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    good = [n for n, pair in enumerate(pairs) if first[pair] in settled - failing]
    assert await batch.file("output") == [batch.answer(n, first[pairs[n]]) for n in good]
    errors = [json.loads(line)["custom_id"] for line in await batch.file("error")]
    assert errors == [f"line-{n}" for n in range(len(pairs)) if n not in good]
