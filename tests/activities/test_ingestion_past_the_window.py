"""Ingestion whose window is over: every line has its place in the files, nothing is prepared for workers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest

from activities.ingest.window import Window
from batchwright.contracts.errors import LineCode
from batchwright.contracts.ingestion import IngestResult
from batchwright.contracts.openai import BatchStatus, Endpoint
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from tests.activities.finalized import finalized
from tests.activities.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.fakes.storage import MemoryStorage, MemoryWriter

OVER = timedelta(seconds=-2)


class Error(msgspec.Struct):
    code: str


class ErrorLine(msgspec.Struct):
    custom_id: str
    error: Error


class ClosingStorage(MemoryStorage):
    """The window is over once the first shard is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[MemoryWriter, None]:
        self.is_over = True
        async with super().writer(key) as writer:
            yield writer


async def expired(batch: FreshBatch, result: IngestResult) -> list[tuple[str, str]]:
    """Id and code of each line of the error file of a batch of which nothing ran."""
    ended = await finalized(batch, result, BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.EXPIRED, 0, result.total)
    row = await batch.database.files.get(TENANT, derived_file_id(BATCH_ID, "error"))
    assert row is not None
    lines = [
        msgspec.json.decode(line, type=ErrorLine)
        for line in batch.storage.objects[row.storage_key].splitlines()
    ]
    return [(line.custom_id, line.error.code) for line in lines]


async def test_every_line_expires_by_its_name_and_none_is_prepared_for_a_worker() -> None:
    lines = (a_line("1", "b"), a_line("2"), a_line("3", "nobody's"), a_line("4", "b"))
    batch = await a_batch(*lines, window=OVER)
    result = await batch.ingest()
    assert result.closed
    assert [(share.model, share.lines, share.slices) for share in result.models] == [("a", 1, 0), ("b", 2, 0)]
    assert set(batch.written()) == {
        keys.plan(result.prefix, "a"),
        keys.plan(result.prefix, "b"),
        keys.unserved(result.prefix),
        keys.model_map(result.prefix),
    }
    assert await expired(batch, result) == [
        ("1", "batch_expired"),
        ("2", "batch_expired"),
        ("3", "model_not_found"),
        ("4", "batch_expired"),
    ]


async def test_where_no_backend_has_told_its_models_lines_expire_as_well() -> None:
    """Any of them may be served; one that names no model is not."""
    lines = (a_line("1", "b"), a_line("2"), a_line("3", None))
    how = {"served": (), "backends": ["http://127.0.0.1:9"], "endpoint": Endpoint.RESPONSES}
    batch = await a_batch(*lines, window=OVER, **how)
    result = await batch.ingest()
    assert result.closed
    assert await expired(batch, result) == [
        ("1", "batch_expired"),
        ("2", "batch_expired"),
        ("3", "model_not_found"),
    ]


async def test_a_window_that_closes_while_shards_are_written_ends_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two models; what was not written whole is not written at all."""
    storage = ClosingStorage()
    monkeypatch.setattr(Window, "is_over", property(lambda window: storage.is_over))
    batch = await a_batch(a_line("1"), a_line("2", "b"), a_line("3"), storage=storage)
    result = await batch.ingest()
    assert result.closed
    assert [share.slices for share in result.models] == [0, 0]
    assert not [share for share in result.models if keys.shard(result.prefix, share.safe) in batch.written()]
    assert [name for name, _ in await expired(batch, result)] == ["1", "2", "3"]


async def test_an_input_with_errors_fails_however_late_it_is_read() -> None:
    batch = await a_batch(a_line("1"), a_line("1"), window=OVER)
    result = await batch.ingest()
    assert (result.failed, result.errors, result.closed) == (True, 1, False)
    assert (await batch.row()).status is BatchStatus.FAILED


async def test_what_is_never_sent_is_reserved_of_no_quota() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), window=OVER, max_enqueued_lines=1)
    assert (await batch.ingest()).closed


async def test_equal_lines_expire_each_by_its_own_name() -> None:
    batch = await a_batch(a_line("1"), a_line("2"), window=OVER, deduplicate=True)
    result = await batch.ingest()
    assert [name for name, _ in await expired(batch, result)] == ["1", "2"]
