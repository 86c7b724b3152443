"""The index of a running batch's results: which segments it knows, how long it is kept, and its
file on disk.
"""

import httpx
import pytest

from batchwright.api.services.live_results import result_stream, settled_line_index
from batchwright.api.services.live_results.result_stream import LiveResults, ResultQuery
from batchwright.api.services.live_results.settled_line_index import BYTES_PER_LINE, LiveIndex
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.spill import columns
from batchwright.storage.spill.columns import Columns
from batchwright.storage.spill.scratch_file import ScratchFile
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, a_batch
from tests.fakes.api import error_of
from tests.unit.api.services.live_results.live_batch import LiveBatch, lines_of


async def test_results_stay_readable_when_segments_are_merged(live: LiveBatch) -> None:
    batch = live.batch
    keys = [await live.settle(batch.success(0)), await live.settle(batch.success(1))]
    before = await live.get()
    await live.settle(batch.success(0), batch.success(1), batch.success(2))
    assert (await live.get()).content == lines_of(*map(batch.success, range(3)))  # knows both
    for key in keys:
        await batch.storage.delete(key)
    assert (await live.get()).content == lines_of(*map(batch.success, range(3)))
    assert before.content == lines_of(batch.success(0), batch.success(1))


async def test_segments_may_be_merged_between_listing_and_reading() -> None:
    batch = await a_batch(lines=3)
    live = LiveBatch(batch)
    old = await live.settle(batch.success(0))

    async def merge() -> None:
        await live.settle(batch.success(0), batch.success(1))
        await batch.storage.delete(old)

    reads = 0

    async def at_the_second_read() -> None:
        nonlocal reads
        reads += 1
        if reads == 2:  # the first one reads the footer
            await merge()
        else:
            batch.memory.events[old] = at_the_second_read

    batch.memory.events[old] = at_the_second_read
    assert (await live.get()).content == lines_of(batch.success(0), batch.success(1))
    assert reads == 2


async def test_a_batch_may_end_between_listing_and_reading() -> None:
    batch = await a_batch(lines=2, models=("a",))
    live = LiveBatch(batch)
    key = await live.settle(batch.success(0), batch.success(1))

    async def end() -> None:
        await live.finish()

    async def at_the_footer() -> None:
        batch.memory.events[key] = end

    batch.memory.events[key] = at_the_footer
    assert (await live.get()).content == lines_of(batch.success(0), batch.success(1))
    assert (await live.get()).content == await batch.content("output")


async def test_a_reader_keeps_its_index_though_others_were_used_since(
    live: LiveBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0

    def count() -> None:
        nonlocal opened
        opened += 1

    live.gateway.on_ingested = count
    monkeypatch.setattr(result_stream, "_MAX_INDEXES", 0)
    results, query = LiveResults(live.deps), ResultQuery(follow=True)
    followers = [await live.follow(results, query) for _ in range(2)]
    for n in range(4):
        await live.settle(live.batch.success(n))
        for follower in followers:
            await follower.read_lines(n + 1)
    assert opened == 1


async def test_the_history_of_a_batch_in_validation_is_not_read(live: LiveBatch) -> None:
    id = "batch_" + "1" * 32
    await live.batch.tables.batches.upsert(live.batch.order.model_copy(update={"batch_id": id}))
    live.gateway.failing = AssertionError("must not be asked")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(live.app), base_url="http://api") as http:
        answer = await http.get(f"/v1/batches/{id}/x/results", headers={"X-Tenant": TENANT})
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_result_may_move_to_another_segment_while_its_old_one_is_read() -> None:
    batch = await a_batch(lines=3)
    live = LiveBatch(batch)
    old = await batch.put([batch.success(0)], sequence=2)
    other: list[httpx.Response] = []

    async def move() -> None:
        await batch.put([batch.success(1, "long" * 100), batch.success(0)], sequence=1)
        other.append(await live.get())

    async def at_the_footer() -> None:
        batch.memory.events[old] = move

    batch.memory.events[old] = at_the_footer
    expected = lines_of(batch.success(0), batch.success(1, "long" * 100))
    assert (await live.get()).content == expected
    assert [answer.content for answer in other] == [expected]


async def test_a_refresh_that_fails_is_repeated() -> None:
    batch = await a_batch(lines=3, models=("a",))
    live = LiveBatch(batch)
    old = await live.settle(batch.success(0))
    await live.get()
    await live.settle(batch.success(0), batch.success(1))
    await live.get()  # knows both
    await batch.storage.delete(old)
    new = await live.settle(batch.success(2))

    async def fail() -> None:
        raise StorageUnavailable("for a moment")

    batch.memory.events[new] = fail
    assert (await live.get()).status_code == 503
    assert (await live.get()).content == lines_of(*map(batch.success, range(3)))


async def test_a_full_disk_refuses_the_results_of_a_large_batch_until_it_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = LiveBatch(await a_batch(lines=3))
    await live.settle(live.batch.success(0))
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    with monkeypatch.context() as full:

        def refuse(_: ScratchFile, needed_bytes: int) -> None:
            raise StorageFull(f"{needed_bytes} bytes do not fit")

        full.setattr(ScratchFile, "require", refuse)
        refused = await live.get()
    assert (refused.status_code, error_of(refused).message) == (503, "The storage is full. Try again later.")
    assert (await live.get()).content == lines_of(live.batch.success(0))


async def test_indexes_on_disk_that_nobody_reads_make_room_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = LiveBatch(await a_batch(lines=8))
    row = await live.deps.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    opened = list[str]()
    ids = [f"batch_{n:032x}" for n in range(4)]
    live.gateway.ingestions |= dict.fromkeys(ids, live.gateway.ingestions[BATCH_ID])
    results = LiveResults(live.deps)

    async def index(n: int) -> LiveIndex:
        live.gateway.on_ingested = lambda: opened.append(ids[n])
        order = row.order.model_copy(update={"batch_id": ids[n]})
        found = await results.index(row.model_copy(update={"order": order}))
        assert found is not None
        return found

    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 8 * BYTES_PER_LINE)
    await index(0)  # in memory
    monkeypatch.setattr(result_stream, "_MAX_FILE_BYTES", 8 * BYTES_PER_LINE * 2)
    used = await index(1)
    await index(2)
    await index(3)
    assert opened == ids
    assert [await index(n) is used for n in (0, 1, 3)] == [False, True, False]
    assert opened == ids
    await index(2)
    assert opened == [*ids, ids[2]]
    monkeypatch.setattr(result_stream, "_MAX_FILE_BYTES", 0)
    assert len(await index(3)) == 8  # opened again, though it is larger than the limit
    assert opened == [*ids, ids[2], ids[3]]


async def test_a_reader_releases_the_pages_of_an_index_to_which_nothing_was_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, released = LiveBatch(await a_batch(lines=3)), list[Columns]()
    await live.settle(live.batch.success(0))
    await live.get()

    def record(columns: Columns) -> None:
        released.append(columns)

    monkeypatch.setattr(settled_line_index, "_LINES_PER_RELEASE", 1)
    monkeypatch.setattr(Columns, "release_pages", record)
    assert (await live.get()).content == lines_of(live.batch.success(0))
    assert len(set(released)) == 2  # where the lines are, and where the results are


async def test_a_disk_that_is_full_at_the_end_of_a_batch_does_not_break_off_a_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = LiveBatch(await a_batch(lines=3))
    monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    query = ResultQuery(follow=True, in_input_order=False)
    follower = await live.follow(LiveResults(live.deps), query)
    await live.settle(live.batch.success(1))
    await follower.read_lines(1)

    def refuse(_: ScratchFile, needed_bytes: int) -> None:
        raise StorageFull(f"{needed_bytes} bytes do not fit")

    await live.settle(live.batch.success(0), live.batch.success(2))
    await live.finish()
    monkeypatch.setattr(ScratchFile, "require", refuse)
    await follower.read_to_end()
    assert follower.data == lines_of(*map(live.batch.success, (1, 0, 2)))
