"""Ingestion after the deadline: every line is planned, so that it is in the error file, but none is prepared
for sending.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import msgspec
import pytest

from batchwright.activities.ingestion import publisher
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.rules.deadline import Deadline
from batchwright.rules.ids import derived_file_id
from batchwright.rules.planning.plan_format import ENTRY_BYTES, pack_entry
from batchwright.rules.stored_objects import object_keys
from tests.activities.finalization.finalized import finalized
from tests.activities.ingestion.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage, MemoryWriter

OVER = timedelta(seconds=-2)


class Error(msgspec.Struct):
    code: str


class ErrorLine(msgspec.Struct):
    custom_id: str
    error: Error


class ClosingStorage(MemoryStorage):
    """A storage that lets the deadline pass when ingestion begins to write the first shard."""

    def __init__(self) -> None:
        super().__init__()
        self.deadline_passed = False

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        self.deadline_passed = True
        async with super().writer(key) as writer:
            yield writer


async def expired(batch: FreshBatch, result: IngestResult) -> list[tuple[str, str]]:
    """Return id and error code of each line in the error file of a batch that was never executed."""
    ended = await finalized(batch, result, BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.EXPIRED, 0, result.total)
    row = await batch.database.files.get(TENANT, derived_file_id(BATCH_ID, "error"))
    assert row is not None
    lines = [
        msgspec.json.decode(line, type=ErrorLine)
        for line in batch.storage.objects[row.storage_key].splitlines()
    ]
    return [(line.custom_id, line.error.code) for line in lines]


async def test_every_line_expires_under_its_custom_id_and_none_is_planned() -> None:
    lines = (a_line("1", "b"), a_line("2"), a_line("3", "nobody's"), a_line("4", "b"))
    batch = await a_batch(*lines, window=OVER)
    result = await batch.ingest()
    assert result.deadline_passed
    assert [(share.model, share.lines, share.slices) for share in result.models] == [("a", 1, 0), ("b", 2, 0)]
    assert set(batch.written()) == {
        object_keys.plan(result.ingest_prefix, "a"),
        object_keys.plan(result.ingest_prefix, "b"),
        object_keys.unserved_segment(result.ingest_prefix, 0),
        object_keys.model_map(result.ingest_prefix),
    }
    assert await expired(batch, result) == [
        ("1", "batch_expired"),
        ("2", "batch_expired"),
        ("3", "model_not_found"),
        ("4", "batch_expired"),
    ]


async def test_a_large_plan_of_lines_that_expire_is_written_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "_PIECE_LINES", 3)
    pieces, write = list[int](), MemoryWriter.write

    async def counted(writer: MemoryWriter, data: bytes) -> None:
        pieces.append(len(data))
        await write(writer, data)

    monkeypatch.setattr(MemoryWriter, "write", counted)
    lines = [a_line(str(number), text="x" * number) for number in range(7)]
    batch = await a_batch(*lines, window=OVER)
    result = await batch.ingest()
    offsets = accumulate((len(line) + 1 for line in lines), initial=0)
    expected = [pack_entry((offset, len(line) + 1, 0)) for line, offset in zip(lines, offsets, strict=False)]
    key = object_keys.plan(result.ingest_prefix, "a")
    assert batch.storage.objects[key] == b"".join(expected)
    assert pieces == [3 * ENTRY_BYTES, 3 * ENTRY_BYTES, ENTRY_BYTES]


async def test_lines_expire_even_if_no_backend_has_listed_its_models() -> None:
    """Lines with any model are accepted, because a backend may serve it. A line without a model
    is rejected.
    """
    lines = (a_line("1", "b"), a_line("2"), a_line("3", None))
    how = {"served": (), "backends": ["http://127.0.0.1:9"], "endpoint": Endpoint.RESPONSES}
    batch = await a_batch(*lines, window=OVER, **how)
    result = await batch.ingest()
    assert result.deadline_passed
    assert await expired(batch, result) == [
        ("1", "batch_expired"),
        ("2", "batch_expired"),
        ("3", "model_not_found"),
    ]


async def test_the_deadline_ends_the_writing_of_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard (a stored object with input lines) that is not complete at the deadline is not written."""
    storage = ClosingStorage()

    def passed(deadline: Deadline, now: float) -> bool:
        return storage.deadline_passed

    monkeypatch.setattr(Deadline, "passed", passed)
    batch = await a_batch(a_line("1"), a_line("2", "b"), a_line("3"), storage=storage)
    result = await batch.ingest()
    assert result.deadline_passed
    assert [share.slices for share in result.models] == [0, 0]
    assert not [
        share
        for share in result.models
        if object_keys.shard(result.ingest_prefix, share.safe_model) in batch.written()
    ]
    assert [name for name, _ in await expired(batch, result)] == ["1", "2", "3"]


async def test_an_input_with_errors_fails_however_late_it_is_read() -> None:
    batch = await a_batch(a_line("1"), a_line("1"), window=OVER)
    result = await batch.ingest()
    assert (result.failed, result.error_count, result.deadline_passed) == (True, 1, False)
    assert (await batch.row()).status is BatchStatus.FAILED


async def test_lines_that_are_never_sent_reserve_no_quota() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), window=OVER, max_enqueued_lines=1)
    assert (await batch.ingest()).deadline_passed


async def test_equal_lines_expire_each_under_its_own_custom_id() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), window=OVER, deduplicate=True)
    result = await batch.ingest()
    assert [name for name, _ in await expired(batch, result)] == ["1", "2"]


async def ended_with_files_pending(batch: FreshBatch) -> None:
    await batch.database.batches.upsert(batch.order)
    later = datetime.now(UTC) + timedelta(days=1)
    at = batch.order.deadline
    await batch.database.batch_ends.end_without_files(
        TENANT, BATCH_ID, BatchStatus.EXPIRED, [], at, files_until=later
    )


async def test_a_batch_that_ended_before_its_input_was_read_gets_its_files() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "nobody's"), window=OVER)
    await ended_with_files_pending(batch)
    result = await batch.ingest()
    assert not result.failed
    assert (await batch.row()).status is BatchStatus.EXPIRED
    codes = [("1", LineCode.BATCH_EXPIRED), ("2", LineCode.MODEL_NOT_FOUND)]
    assert await expired(batch, result) == codes
    assert not (await batch.row()).files_pending


async def test_an_input_found_invalid_after_the_end_leaves_the_batch_expired() -> None:
    batch = await a_batch(b"{", window=OVER)
    await ended_with_files_pending(batch)
    assert (await batch.ingest()).failed
    row = await batch.row()
    assert (row.status, row.files_pending, row.total) == (BatchStatus.EXPIRED, False, 1)
    assert [error.line for error in row.errors] == [1]
