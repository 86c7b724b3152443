"""Database rows for the tests that each implementation of the database must pass."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import BatchOrder, ModelCounts, ModelUsage
from batchwright.contracts.terms import BatchStatus, Endpoint, HoldKind, Usage
from batchwright.database.database import Database
from batchwright.database.records import BatchOutcome, BatchRow, FileRow, SliceProgress, UploadRow
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource

START = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
SetHeartbeatAge = Callable[[str, float], Awaitable[None]]  # of a worker, in seconds
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MODELS = [ModelCounts(model="b", lines=6), ModelCounts(model="a", lines=3)]


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


def an_upload(id: str = "upload_1", tenant: str = "t", **changes: object) -> UploadRow:
    row = UploadRow(
        id=id,
        tenant=tenant,
        purpose="batch",
        filename="Größe.jsonl",
        mime_type="application/jsonl",
        bytes=2**33,
        created_at=START,
        expires_at=after(3600),
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
        deadline=START + timedelta(hours=24),
    )
    return order.model_copy(update=changes)


def slice_progress(number: int = 0, **changes: object) -> SliceProgress:
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


def an_outcome(status: BatchStatus = BatchStatus.COMPLETED, **changes: object) -> BatchOutcome:
    outcome = BatchOutcome(
        status=status,
        completed=8,
        failed=2,
        usage=Usage(input_tokens=5, cached_tokens=1, output_tokens=7, reasoning_tokens=2),
        model_usage=[ModelUsage(model="a", requests=8, input_tokens=5, cached_tokens=1, output_tokens=7)],
        output=a_file("file-out", purpose="batch_output", storage_key="x/out/1"),
        error=a_file("file-err", purpose="batch_output", storage_key="x/err/1"),
    )
    return outcome.model_copy(update=changes)


async def a_running_batch(database: Database, id: str = "batch_1") -> BatchRow:
    """Create a batch of ten lines that has been in progress since 10 s after START, and return its row.

    Six lines are for model "b", three for model "a", and one for a model that no backend serves.
    """
    order = an_order(id)
    await database.batches.upsert(order)
    moved = await database.batches.start(order.tenant, id, total=10, models=MODELS, at=after(10), unserved=1)
    assert moved
    row = await database.batches.get(order.tenant, id)
    assert row is not None
    return row


def a_pause(id: str = "batch_1", tenant: str = "t", **changes: object) -> WaitingRow:
    row = WaitingRow(
        tenant=tenant,
        batch_id=id,
        source=WaitingSource.USER,
        reason="paused",
        since=after(11),
        until=after(10**6),
    )
    return row.model_copy(update=changes)


async def rows_of_others(database: Database) -> None:
    """Store rows that must not change what tests see of the batch "batch_1" of tenant "t" at the time
    `after(20)`.

    Most belong to another batch of tenant "t", or to a batch of tenant "u" that has the same id. Both batches
    are in progress and paused. Some rows name "batch_1" of "t", but they have expired or do not pause it.
    """
    for order in (an_order("batch_2"), an_order("batch_1", "u")):
        tenant, id = order.tenant, order.batch_id
        await database.batches.upsert(order)
        await database.batches.start(tenant, id, total=9, models=MODELS, at=after(10))
        reports = [
            slice_progress(tenant=tenant, batch_id=id, model=model, completed=2) for model in ("a", "b")
        ]
        await database.progress.record(reports)
        await database.waiting.report(a_pause(id, tenant))
    for row in (a_pause(until=after(20)), a_pause(source=WaitingSource.FLEET), a_pause(model="a")):
        await database.waiting.report(row)
    await database.quotas.change("u", {"weight": 9.0, "max_in_flight": 1}, START)
    for kind, name in (("tenant", "u"), ("tenant", "a"), ("model", "t"), ("model", "c")):
        await database.holds.put(HoldKind(kind), name, after(15))
