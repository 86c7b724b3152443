"""Results of a batch while it runs. At any time, they are the beginning of the final file."""

import asyncio
import json
from collections.abc import AsyncIterable, Sequence
from functools import cached_property
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from batchwright.api.app import build_app
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.long_responses import LIFETIME_SECONDS
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.api.services.live_results import reading_order, result_stream, settled_line_index
from batchwright.api.services.live_results.result_stream import LiveResults, ReaderCutOff, ResultQuery
from batchwright.api.services.live_results.settled_line_index import BYTES_PER_LINE, LiveIndex
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.planning.duplicate_lines import Duplicate, encode_duplicates
from batchwright.rules.results.segment_format import SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.local import LocalStorage
from batchwright.storage.spill import columns, spilled_bytes
from batchwright.storage.spill.columns import Columns
from batchwright.storage.spill.scratch_file import ScratchFile
from batchwright.telemetry.metrics import Metrics
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, SettledBatch, a_batch
from tests.clocks import skip_time
from tests.fakes.api import Served, error_of
from tests.fakes.gateway import MemoryGateway
from tests.fakes.settings import load

SCOPE: dict[str, object] = {"type": "http", "method": "GET", "path": "/", "headers": list[object]()}


class LiveBatch:
    """A running batch, and an API that reads it. The last lines are `duplicates` copies of line 0."""

    def __init__(self, batch: SettledBatch, duplicates: int = 0) -> None:
        self.batch, self._written = batch, 0
        request = batch.request()
        shares = [
            share.model_copy(update={"duplicates": duplicates if n == 0 else 0})
            for n, share in enumerate(request.models)
        ]
        self.request = request.model_copy(update={"models": shares})
        self.gateway = MemoryGateway()
        self.gateway.ingestions[BATCH_ID] = IngestResult(
            ingest_prefix=batch.prefix, models=shares, total=request.total, unserved=len(batch.unserved)
        )
        self.deps = ApiDependencies(
            load(), batch.tables, batch.storage, self.gateway, Served(), Metrics(), recent_seconds=0
        )

    @cached_property
    def app(self) -> FastAPI:
        return build_app(self.deps, BatchEvents(self.deps))

    async def settle(self, *records: SegmentRecord) -> str:
        """Store the results as one segment, and return its key."""
        self._written += 1
        return await self.batch.put(list(records), sequence=self._written)

    async def get(self, tenant: str = TENANT, **query: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://api") as http:
            path = f"/v1/batches/{BATCH_ID}/x/results"
            return await http.get(path, params=query, headers={"X-Tenant": tenant})

    async def follow(self, results: LiveResults, query: ResultQuery) -> "Follower":
        row = await self.deps.database.batches.get(TENANT, BATCH_ID)
        assert row is not None
        response = await results.response(Request(SCOPE, _silent), row, query)
        assert isinstance(response, StreamingResponse)
        return Follower(response.body_iterator)

    async def finish(self) -> None:
        await self.batch.finalize(self.request)


async def _silent() -> dict[str, object]:
    """Receive nothing from the client, which stays connected."""
    return await asyncio.get_running_loop().create_future()


class Follower:
    """Reads a response until the batch has ended. `data` contains the bytes read so far."""

    def __init__(self, pieces: AsyncIterable[str | bytes | memoryview]) -> None:
        self._pieces = aiter(pieces)
        self.data = b""

    async def read_lines(self, count: int) -> None:
        """Read until `count` lines have been read in total."""
        while self.data.count(b"\n") < count:
            self.data += _bytes(await anext(self._pieces))

    async def read_to_end(self) -> None:
        async for piece in self._pieces:
            self.data += _bytes(piece)


def _bytes(piece: str | bytes | memoryview) -> bytes:
    assert isinstance(piece, bytes)
    return piece


@pytest.fixture(params=["memory", "local", "index on disk"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveBatch:
    """A batch of eight lines. Ingestion has settled line 5 with an error."""
    if request.param == "index on disk":
        monkeypatch.setattr(columns, "_MEMORY_BYTES", 0)
        monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
        monkeypatch.setattr(columns, "_SPILL_BYTES", 0)
        monkeypatch.setattr(spilled_bytes, "_CHUNK_BYTES", 1)
        monkeypatch.setattr(settled_line_index, "_LINES_PER_RELEASE", 1)
    storage = LocalStorage(tmp_path) if request.param == "local" else None
    return LiveBatch(await a_batch(lines=8, unserved=[5], storage=storage))


def lines_of(*records: SegmentRecord) -> bytes:
    return b"".join(record.payload + b"\n" for record in records)


async def test_settled_lines_are_read_in_input_order_up_to_the_first_unsettled_line(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(batch.success(2), batch.success(0))
    await live.settle(batch.failure(1), batch.success(4))
    answer = await live.get()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
    assert answer.content == lines_of(batch.success(0), batch.success(2))
    assert (await live.get(status="failed")).content == lines_of(batch.failure(1))


async def test_at_any_time_the_lines_are_the_beginning_of_the_final_files(live: LiveBatch) -> None:
    batch, seen = live.batch, {"completed": [b""], "failed": [b""]}
    for n in (3, 0, 7, 1, 2, 6, 4):
        await live.settle(batch.failure(n) if n in (1, 6) else batch.success(n, f"answer {n}" * 1000))
        for status, found in seen.items():
            found.append((await live.get(status=status)).content)
    await live.finish()
    for status, kind in (("completed", "output"), ("failed", "error")):
        whole = await batch.content(kind)
        assert seen[status] == sorted(seen[status], key=len)
        assert all(whole.startswith(part) for part in seen[status])
        assert seen[status][-1] == whole == (await live.get(status=status)).content


async def test_a_batch_whose_input_is_not_validated_has_no_results(live: LiveBatch) -> None:
    live.gateway.ingestions.clear()
    assert (await live.get()).content == b""


async def test_reading_continues_after_a_line(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(*(batch.failure(n) if n == 1 else batch.success(n) for n in range(5)))
    first = await live.get()
    third = batch.success(2).payload[7:49].decode()
    assert (await live.get(after=third)).content == lines_of(batch.success(3), batch.success(4))
    await live.settle(batch.success(6), batch.success(7))
    last = first.content.splitlines()[-1][7:49].decode()
    rest = await live.get(after=last)
    assert rest.content == lines_of(batch.success(6), batch.success(7))
    await live.finish()
    assert (await live.get(after=last)).content == rest.content
    assert first.content + rest.content == await batch.content("output")


@pytest.mark.parametrize("is_ended", [False, True])
async def test_only_a_line_that_the_request_selects_can_be_continued_after(
    live: LiveBatch, is_ended: bool
) -> None:
    batch = live.batch
    await live.settle(*(batch.failure(n) if n == 1 else batch.success(n) for n in range(8) if n != 5))
    if is_ended:
        await live.finish()
    failed = batch.failure(1).payload[7:49].decode()
    for after in (failed, "batch_req_" + "0" * 32, "batch_req_", "", "\x00", '"'):
        answer = await live.get(after=after)
        assert (answer.status_code, error_of(answer).param) == (400, "after"), after
    assert (await live.get(after=failed, status="failed")).content == lines_of(
        batch.failure(5, LineCode.MODEL_NOT_FOUND)
    )


async def test_a_line_that_is_not_settled_yet_cannot_be_continued_after(live: LiveBatch) -> None:
    answer = await live.get(after=live.batch.success(3).payload[7:49].decode())
    assert (answer.status_code, error_of(answer).param) == (400, "after")


async def test_results_of_one_custom_id_can_be_read(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(*(batch.success(n) for n in range(8) if n != 5))
    assert (await live.get(custom_id="line-2")).content == lines_of(batch.success(2))
    assert (await live.get(custom_id="line-")).content == b""
    await live.finish()
    assert (await live.get(custom_id="line-2")).content == lines_of(batch.success(2))
    assert (await live.get(custom_id="line-5", status="failed")).content == await batch.content("error")


@pytest.mark.parametrize(
    ("param", "value"), [("status", "done"), ("status", ""), ("follow", "1"), ("order", "id")]
)
async def test_unknown_values_are_refused(live: LiveBatch, param: str, value: str) -> None:
    answer = await live.get(**{param: value})
    assert (answer.status_code, error_of(answer).param) == (400, param)


async def test_another_tenant_gets_404(live: LiveBatch) -> None:
    await live.settle(live.batch.success(0))
    assert (await live.get(tenant="other")).status_code == 404


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


async def test_a_success_counts_and_not_an_earlier_failure(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(batch.failure(0))
    await live.settle(batch.success(0))
    assert (await live.get()).content == lines_of(batch.success(0))
    assert (await live.get(status="failed")).content == b""


async def test_a_duplicate_is_settled_together_with_its_original() -> None:
    batch = await a_batch(lines=4, models=("a",))
    batch.unserved = frozenset({2, 3})
    await batch.prepare()
    await batch.storage.delete(object_keys.unserved_segment(batch.prefix, 0))
    batch.unserved = frozenset()
    first = batch.lines[0].offset
    copies = [Duplicate(batch.lines[n].offset, first, f"copy-é-{n}") for n in (2, 3)]
    await batch.storage.put(object_keys.duplicates(batch.prefix, "a"), encode_duplicates(copies))
    live = LiveBatch(batch, duplicates=2)
    live.request = live.request.model_copy(
        update={"models": [live.request.models[0].model_copy(update={"lines": 2})]}
    )
    await live.settle(batch.success(1))
    assert (await live.get()).content == b""
    await live.settle(batch.success(0))
    found = (await live.get()).content
    assert found.count(b"\n") == 4
    assert (await live.get(custom_id="copy-é-3")).content == found.splitlines(keepends=True)[3]
    by_settlement = (await live.get(order="settled")).content.splitlines(keepends=True)
    assert by_settlement == [found.splitlines(keepends=True)[n] for n in (1, 0, 2, 3)]
    await live.finish()
    assert found == await batch.content("output")


async def test_a_follower_gets_each_line_once_until_the_batch_has_ended(live: LiveBatch) -> None:
    batch = live.batch
    follower = await live.follow(LiveResults(live.deps), ResultQuery(follow=True))
    await live.settle(batch.success(0), batch.success(2))
    await follower.read_lines(1)
    await live.settle(batch.failure(1), batch.success(3))
    await follower.read_lines(3)
    assert follower.data == lines_of(batch.success(0), batch.success(2), batch.success(3))
    await live.settle(batch.success(4), batch.success(6), batch.success(7))
    await live.finish()
    await follower.read_to_end()
    assert follower.data == await batch.content("output")


async def test_a_follower_of_failed_lines_gets_those_that_the_end_settles(live: LiveBatch) -> None:
    batch = live.batch
    follower = await live.follow(LiveResults(live.deps), ResultQuery(success=False, follow=True))
    await live.settle(batch.failure(0), batch.success(1))
    await follower.read_lines(1)
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    await follower.read_to_end()
    assert follower.data == await batch.content("error")


async def test_in_the_order_of_settlement_no_line_waits_for_another_one(live: LiveBatch) -> None:
    batch = live.batch
    query = ResultQuery(follow=True, in_input_order=False)
    follower = await live.follow(LiveResults(live.deps), query)
    await live.settle(batch.success(6), batch.failure(7))
    await follower.read_lines(1)
    await live.settle(batch.success(2), batch.success(4))
    await follower.read_lines(3)
    assert follower.data == lines_of(batch.success(6), batch.success(2), batch.success(4))
    assert (await live.get(order="settled")).content.count(b"\n") == 3
    failed = (await live.get(order="settled", status="failed")).content
    assert [json.loads(each)["custom_id"] for each in failed.splitlines()] == ["line-5", "line-7"]
    await live.settle(batch.failure(0), batch.success(1), batch.success(3))
    await live.finish()
    await follower.read_to_end()
    output = await batch.content("output")
    assert sorted(follower.data.splitlines()) == sorted(output.splitlines())
    assert (await live.get(order="settled")).content == output


async def test_in_the_order_of_settlement_a_line_comes_once_wherever_its_result_is_moved(
    live: LiveBatch,
) -> None:
    batch = live.batch
    query = ResultQuery(follow=True, in_input_order=False)
    follower = await live.follow(LiveResults(live.deps), query)
    old = [await live.settle(batch.success(4)), await live.settle(batch.failure(2))]
    await follower.read_lines(1)
    await live.settle(batch.success(4), batch.failure(2), batch.success(3))
    for key in old:
        await batch.storage.delete(key)
    await follower.read_lines(2)
    await live.settle(batch.success(2))  # counts, and not the earlier failure
    await follower.read_lines(3)
    assert follower.data == lines_of(batch.success(4), batch.success(3), batch.success(2))


async def test_only_results_in_input_order_can_be_continued_after_a_line(live: LiveBatch) -> None:
    await live.settle(live.batch.success(0))
    after = (await live.get()).content[7:49].decode()
    answer = await live.get(order="settled", after=after)
    assert (answer.status_code, error_of(answer).param) == (400, "after")


async def test_a_follower_may_begin_before_the_input_is_validated(live: LiveBatch) -> None:
    ingestions = dict(live.gateway.ingestions)
    live.gateway.ingestions.clear()
    follower = await live.follow(LiveResults(live.deps), ResultQuery(follow=True))
    live.gateway.ingestions.update(ingestions)
    await live.settle(live.batch.success(0))
    await follower.read_lines(1)
    assert follower.data == lines_of(live.batch.success(0))


async def test_the_stop_of_the_api_ends_the_response_of_a_follower(live: LiveBatch) -> None:
    follower = await live.follow(LiveResults(live.deps), ResultQuery(follow=True))
    await live.settle(live.batch.success(0))
    await follower.read_lines(1)
    live.deps.stopping.set()
    await follower.read_to_end()
    assert follower.data == lines_of(live.batch.success(0))


async def test_the_response_of_a_follower_ends_after_its_lifetime(live: LiveBatch) -> None:
    follower = await live.follow(LiveResults(live.deps), ResultQuery(follow=True))
    await live.settle(live.batch.success(0))
    await follower.read_lines(1)
    skip_time(LIFETIME_SECONDS)
    await follower.read_to_end()
    assert follower.data == lines_of(live.batch.success(0))


@pytest.mark.parametrize("follow", [True, False])
async def test_the_lifetime_ends_only_responses_that_follow(follow: bool) -> None:
    batch = await a_batch(lines=2500, models=("a",))
    live = LiveBatch(batch)
    await live.settle(*map(batch.success, range(2499)))
    reader = await live.follow(LiveResults(live.deps), ResultQuery(follow=follow))
    await reader.read_lines(1)
    skip_time(LIFETIME_SECONDS)
    await reader.read_to_end()
    assert reader.data == lines_of(*map(batch.success, range(1024 if follow else 2499)))


async def test_a_response_breaks_off_when_its_batch_is_deleted(live: LiveBatch) -> None:
    follower = await live.follow(LiveResults(live.deps), ResultQuery(follow=True))
    live.batch.database.rows.batches.clear()
    with pytest.raises(ReaderCutOff):
        await follower.read_to_end()


async def test_a_tenant_has_a_limited_number_of_followers(live: LiveBatch) -> None:
    results = LiveResults(live.deps)
    row = await live.deps.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    request = Request(SCOPE, _silent)
    responses = [await results.response(request, row, ResultQuery(follow=True)) for _ in range(8)]
    with pytest.raises(ApiError) as refused:
        await results.response(request, row, ResultQuery(follow=True))
    assert refused.value.status == 429

    async def disconnected() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def gone(_: object) -> None:
        raise OSError

    with pytest.raises(ClientDisconnect):
        await responses[0]({"type": "http", "asgi": {"spec_version": "2.4"}}, disconnected, gone)
    await results.response(request, row, ResultQuery(follow=True))


async def test_a_head_request_reads_nothing(live: LiveBatch) -> None:
    live.gateway.failing = AssertionError("must not be asked")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(live.app), base_url="http://api") as http:
        answer = await http.head(f"/v1/batches/{BATCH_ID}/x/results", headers={"X-Tenant": TENANT})
    assert (answer.status_code, answer.content) == (200, b"")


async def test_many_lines_are_read_in_several_windows() -> None:
    batch = await a_batch(lines=2500, models=("a",))
    live = LiveBatch(batch)
    order: Sequence[int] = [n * 7 % 2500 for n in range(2500)]  # 7 does not divide 2500
    for start in range(0, 2500, 250):
        await live.settle(*(batch.success(n) for n in order[start : start + 250]))
    found = (await live.get()).content
    await live.finish()
    assert found == await batch.content("output")


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


async def test_a_response_ends_if_its_last_line_is_not_in_the_file_of_the_ended_batch(
    live: LiveBatch,
) -> None:
    batch = live.batch
    follower = await live.follow(LiveResults(live.deps), ResultQuery(success=False, follow=True))
    await live.settle(batch.failure(0))
    await follower.read_lines(1)
    await live.settle(*(batch.success(n) for n in range(8) if n != 5))
    await live.finish()
    await follower.read_to_end()
    assert follower.data == lines_of(batch.failure(0))


async def test_the_search_for_a_line_in_a_file_ends_when_the_client_has_disconnected(live: LiveBatch) -> None:
    batch = live.batch
    await live.settle(*(batch.success(n) for n in range(8) if n != 5))
    await live.finish()
    row = await live.deps.database.batches.get(TENANT, BATCH_ID)
    assert row is not None

    async def disconnected() -> dict[str, object]:
        return {"type": "http.disconnect"}

    unknown = ResultQuery(after="batch_req_" + "0" * 32)  # all pieces of the file would be searched for it
    response = await LiveResults(live.deps).response(Request(SCOPE, disconnected), row, unknown)
    assert isinstance(response, StreamingResponse)
    assert [piece async for piece in response.body_iterator if piece] == []


async def test_other_requests_run_while_a_reader_passes_lines_that_it_does_not_select(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, turns = await a_batch(lines=8, unserved=[5]), 0  # storage in memory does not let others run
    live = LiveBatch(batch)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(reading_order, "_LOOKED_AT_ONCE", 1)
    await live.settle(*(batch.success(n) for n in range(5)))
    follower = await live.follow(LiveResults(live.deps), ResultQuery(success=False, follow=True))
    async with asyncio.TaskGroup() as tasks:
        counter = tasks.create_task(count())
        await follower.read_lines(1)  # line 5
        counter.cancel()
    assert turns >= 5


async def test_a_response_with_large_results_comes_in_pieces_of_about_a_mebibyte() -> None:
    batch = await a_batch(lines=6, models=("a",))
    live = LiveBatch(batch)
    records = [batch.success(n, "x" * 400_000) for n in range(6)]
    await live.settle(*records)
    row = await live.deps.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    response = await LiveResults(live.deps).response(Request(SCOPE, _silent), row, ResultQuery())
    assert isinstance(response, StreamingResponse)
    pieces = [_bytes(piece) async for piece in response.body_iterator]
    assert b"".join(pieces) == lines_of(*records)
    assert max(map(len, pieces)) < 1024 * 1024 + 401_000


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
