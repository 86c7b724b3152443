"""Known failures of batch systems. Each test is named after one, and uses a real database and a real disk."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.api.schemas.openai_objects import batch_object
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.driver import connect
from batchwright.database.records import BatchRow
from batchwright.rules.batch_states import visible_status
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.files import FileWriter
from batchwright.storage.local import LocalStorage
from tests.activities.finalization.settled_batch import BATCH_ID, CREATED, TENANT, SettledBatch, names

pytestmark = pytest.mark.integration
LINES = 4


class Breaking(LocalStorage):
    """A storage in which one write fails, after `writes_left` successful writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writes_left = 1_000

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[FileWriter, None]:
        self.writes_left -= 1
        if self.writes_left == -1:
            raise StorageUnavailable("The worker was killed here.")
        async with super().writer(key) as writer:
            yield writer


@pytest.fixture
def disk(tmp_path: Path) -> Breaking:
    return Breaking(tmp_path / "objects")


@pytest.fixture
async def batch(database: Database, disk: Breaking) -> SettledBatch:
    """A batch of four lines, of which two have succeeded and two have failed."""
    batch = SettledBatch(lines=LINES, storage=disk, tables=database)
    await batch.prepare()
    await batch.put([batch.success(0), batch.failure(1), batch.success(2), batch.failure(3)])
    return batch


async def row_of(batch: SettledBatch) -> BatchRow:
    row = await batch.tables.batches.get(TENANT, BATCH_ID)
    assert row is not None
    return row


async def cancelled(batch: SettledBatch, seconds: float = 60) -> None:
    assert await batch.tables.batches.request_cancel(TENANT, BATCH_ID, CREATED + timedelta(seconds=seconds))


def now_of_finalization() -> datetime:
    """Return the current time of the clock that the API and finalization share."""
    return datetime.now(UTC)


async def assert_whole(batch: SettledBatch) -> None:
    assert await batch.ids("output") == names([0, 2])
    assert await batch.ids("error") == names([1, 3])


async def test_terminal_status_overwritten_by_a_late_writer(batch: SettledBatch) -> None:
    await batch.finalize()
    ended = await row_of(batch)
    table, ends, at = batch.tables.batches, batch.tables.batch_ends, CREATED + timedelta(hours=2)
    assert not await table.start(TENANT, BATCH_ID, total=9, models=[], at=at, unserved=0)
    assert not await table.start_finalizing(TENANT, BATCH_ID, at)
    assert not await ends.fail_validation(TENANT, BATCH_ID, errors=[], total=9, at=at)
    await ends.end_without_files(TENANT, BATCH_ID, BatchStatus.FAILED, [], at)
    await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert await row_of(batch) == ended
    assert ended.status is BatchStatus.COMPLETED
    await assert_whole(batch)


async def test_cancel_reverted(batch: SettledBatch) -> None:
    """A batch shown as cancelling ends as cancelled, even if a slower writer still runs."""
    await cancelled(batch)
    table = batch.tables.batches
    await table.start(TENANT, BATCH_ID, total=LINES, models=[], at=CREATED, unserved=0)
    await table.start_finalizing(TENANT, BATCH_ID, CREATED)
    assert batch_object(await row_of(batch)).status is BatchStatus.CANCELLING
    await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert (await row_of(batch)).status is BatchStatus.CANCELLED
    await assert_whole(batch)


async def test_cancel_racing_completion_the_cancel_first(batch: SettledBatch) -> None:
    """The cancel is accepted while the files are written.

    The batch ends as cancelled, although all lines have results.
    """
    await batch.tables.batches.request_cancel(TENANT, BATCH_ID, now_of_finalization())
    with pytest.raises(ApplicationError) as refused:
        await batch.finalize()
    assert (refused.value.type, refused.value.non_retryable) == (Failure.CANCEL_ACCEPTED, False)
    row = await row_of(batch)
    assert visible_status(row.status, cancel_requested=True) is BatchStatus.CANCELLING
    await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert (await row_of(batch)).status is BatchStatus.CANCELLED
    await assert_whole(batch)


async def test_cancel_racing_completion_the_completion_first(batch: SettledBatch) -> None:
    await batch.finalize()
    before = await row_of(batch)
    noted = await batch.tables.batches.request_cancel(TENANT, BATCH_ID, now_of_finalization())
    assert noted is None or noted == before
    assert await row_of(batch) == before
    assert before.status is BatchStatus.COMPLETED


async def test_a_cancel_that_never_reached_its_run_does_not_block_the_batch_forever(
    batch: SettledBatch,
) -> None:
    """Temporal was restored from an older state, which lacks the cancel.

    After ten minutes the batch completes.
    """
    await cancelled(batch)  # long ago
    await batch.finalize()
    assert (await row_of(batch)).status is BatchStatus.COMPLETED


async def test_crash_between_the_two_finalization_uploads(batch: SettledBatch, disk: Breaking) -> None:
    disk.writes_left = 1
    with pytest.raises(ApplicationError) as died:
        await batch.finalize()
    assert died.value.type == Failure.STORAGE_UNAVAILABLE
    assert (await row_of(batch)).status is BatchStatus.FINALIZING
    await batch.finalize()
    assert (await row_of(batch)).status is BatchStatus.COMPLETED
    await assert_whole(batch)
    assert len([info async for info in disk.list("")]) == 3  # input, output, errors: nothing is left over


async def test_the_same_slice_on_two_workers(database: Database, disk: Breaking) -> None:
    """Two workers wrote results of the same lines. Each line has one result, and the counts agree."""
    batch = SettledBatch(lines=LINES, storage=disk, tables=database)
    await batch.prepare()
    await batch.put([batch.success(0, "first"), batch.failure(1), batch.success(2)], attempt=1)
    await batch.put([batch.success(0, "second"), batch.success(1), batch.failure(2)], attempt=2)
    await batch.put([batch.failure(3)], attempt=2, sequence=1)
    result = await batch.finalize()
    assert (result.completed, result.failed) == (3, 1)
    assert await batch.ids("output") == names([0, 1, 2])
    assert await batch.ids("error") == names([3])


async def test_two_finalizations_at_the_same_time_write_one_pair_of_files(batch: SettledBatch) -> None:
    first, second = await asyncio.gather(batch.finalize(), batch.finalize())
    assert first == second
    await assert_whole(batch)


async def test_postgresql_back_from_an_older_state_without_the_batch(
    batch: SettledBatch, database_url: str
) -> None:
    """PostgreSQL was restored from a time before the batch and its input existed.

    The workflow creates the row, and writes all files.
    """
    connection = await connect(database_url)
    await connection.execute("DELETE FROM batches")
    await connection.execute("DELETE FROM files")
    await connection.close()
    await batch.finalize()
    row = await row_of(batch)
    assert (row.status, row.completed, row.failed, row.total) == (BatchStatus.COMPLETED, 2, 2, LINES)
    await assert_whole(batch)


async def test_postgresql_back_from_an_older_state_of_the_batch(
    batch: SettledBatch, database_url: str
) -> None:
    """PostgreSQL was restored from a time at which the batch was being validated.

    The end is still recorded.
    """
    connection = await connect(database_url)
    await connection.execute("UPDATE batches SET status = 'validating', in_progress_at = NULL, total = 0")
    await connection.close()
    await batch.finalize()
    assert (await row_of(batch)).status is BatchStatus.COMPLETED
    await assert_whole(batch)


async def test_a_result_that_arrives_after_the_deadline_changes_no_file(
    database: Database, disk: Breaking
) -> None:
    """A suspended worker continues after its batch has expired, and stores the results that it held."""
    batch = SettledBatch(lines=LINES, storage=disk, tables=database)
    await batch.prepare()
    await batch.put([batch.success(0), batch.success(2), batch.failure(3)])
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    before = await batch.content("output"), await batch.content("error")
    await batch.put([batch.success(1, "late")], attempt=7)
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert (await batch.content("output"), await batch.content("error")) == before
    assert (await row_of(batch)).status is BatchStatus.EXPIRED
    assert [json.loads(line)["custom_id"] for line in before[0].splitlines()] == names([0, 2])
