"""Rows for the suite every database passes."""

from datetime import UTC, datetime, timedelta

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, Endpoint, Usage
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import BatchRow, FileRow, ModelCount, Outcome, SliceProgress

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MODELS = [ModelCount(model="b", lines=6), ModelCount(model="a", lines=3)]


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_file(id: str = "file-1", tenant: str = "t", **changes: object) -> FileRow:
    row = FileRow(
        id=id,
        tenant=tenant,
        purpose="batch",
        filename="in.jsonl",
        bytes=12,
        created_at=START,
        storage_key=f"x/{id}",
    )
    return row.model_copy(update=changes)


def an_order(id: str = "batch_1", tenant: str = "t", **changes: object) -> BatchOrder:
    order = BatchOrder(
        batch_id=id,
        tenant=tenant,
        input_file_id="file-1",
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=START,
        expires_at=START + timedelta(hours=24),
    )
    return order.model_copy(update=changes)


def told(number: int = 0, **changes: object) -> SliceProgress:
    row = SliceProgress(
        tenant="t",
        batch_id="batch_1",
        model="a",
        number=number,
        generation=0,
        attempt=1,
        completed=1,
        failed=0,
    )
    return row.model_copy(update=changes)


def an_outcome(status: BatchStatus = BatchStatus.COMPLETED, **changes: object) -> Outcome:
    outcome = Outcome(
        status=status,
        completed=8,
        failed=2,
        usage=Usage(input_tokens=5, cached_tokens=1, output_tokens=7, reasoning_tokens=2),
        output=a_file("file-out", purpose="batch_output", storage_key="x/out/1"),
        error=a_file("file-err", purpose="batch_output", storage_key="x/err/1"),
    )
    return outcome.model_copy(update=changes)


async def a_running_batch(database: DatabaseLike, id: str = "batch_1") -> BatchRow:
    """Ten lines: one unserved, six of b, three of a; in progress since 10 s after START."""
    order = an_order(id)
    await database.batches.upsert(order)
    moved = await database.batches.begin(order.tenant, id, total=10, models=MODELS, at=after(10), unserved=1)
    assert moved
    row = await database.batches.get(order.tenant, id)
    assert row is not None
    return row
