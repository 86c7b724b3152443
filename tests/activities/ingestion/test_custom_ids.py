"""A batch is found by the custom id of each of its lines once its input is validated."""

import asyncio

from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus
from tests.activities.ingestion.fresh_batch import BATCH_ID, TENANT, FreshBatch, a_batch, a_line
from tests.activities.ingestion.test_message_batches import PARAMS, a_message_batch, line
from tests.activities.ingestion.test_resumption import ResumedBatch
from tests.activities.test_calls import collected
from tests.fakes.storage import MemoryStorage


async def finds(batch: FreshBatch, custom_id: str) -> bool:
    page = await batch.database.custom_ids.search(TENANT, custom_id, limit=9, after=None)
    return BATCH_ID in [row.order.batch_id for row in page.rows]


async def test_a_batch_is_found_by_its_lines_whether_they_are_sent_or_not() -> None:
    sent, same, refused = a_line("sent"), a_line("same"), a_line("refused", "x")
    batch = await a_batch(sent, same, refused, deduplicate=True)
    assert (await batch.ingest()).total == 3
    assert [await finds(batch, id) for id in ("sent", "same", "refused", "other")] == [True] * 3 + [False]


async def test_a_message_batch_is_found_by_a_request_that_is_not_valid() -> None:
    batch = await a_message_batch(line("good", PARAMS), line("bad", 5))
    await batch.ingest()
    assert await finds(batch, "good")
    assert await finds(batch, "bad")


async def test_a_resumed_batch_is_found_by_the_lines_whose_results_it_reuses() -> None:
    batch = ResumedBatch()
    expired = [batch.failure(n, LineCode.BATCH_EXPIRED) for n in range(6, 12)]
    await batch.end_with_files([batch.success(n) for n in range(6)], expired)
    await batch.ingest()
    assert [await finds(batch, f"line-{n}") for n in range(13)] == [True] * 12 + [False]


async def test_a_batch_that_failed_validation_is_not_found() -> None:
    batch = await a_batch(a_line("1"), b"{")
    assert (await batch.ingest()).failed
    assert not await finds(batch, "1")


async def test_a_batch_is_found_no_earlier_than_it_is_in_progress_and_after_a_second_attempt() -> None:
    batch = await a_batch(a_line("1"))
    batch.storage = BlockedStorage()
    await batch.upload()
    attempt = batch.start()
    await batch.storage.blocked.wait()
    assert (await batch.row()).status is BatchStatus.VALIDATING
    assert not await finds(batch, "1")
    batch.storage.go_on.set()
    await attempt
    assert await finds(batch, "1")
    stored = dict(batch.database.rows.custom_ids)
    await batch.ingest()
    assert batch.database.rows.custom_ids == stored


async def test_calls_are_not_found_because_their_batches_are_in_no_list() -> None:
    batch = await collected("job_1")
    await batch.ingest()
    assert not batch.database.rows.custom_ids


class BlockedStorage(MemoryStorage):
    """A storage that writes no object before a test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked, self.go_on = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, data: bytes) -> None:
        self.blocked.set()
        await self.go_on.wait()
        await super().put(key, data)
