"""The response with the results of a batch: how it follows a running batch, when it ends, and its limits."""

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from batchwright.api.client_limits.long_responses import LIFETIME_SECONDS
from batchwright.api.errors import ApiError
from batchwright.api.services.live_results.result_stream import LiveResults, ReaderCutOff, ResultQuery
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import BatchStatus
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, a_batch
from tests.clocks import skip_time
from tests.unit.api.services.live_results.live_batch import SCOPE, LiveBatch, data_of, lines_of, silent


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
    request = Request(SCOPE, silent)
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


async def test_a_response_with_large_results_comes_in_pieces_of_about_a_mebibyte() -> None:
    batch = await a_batch(lines=6, models=("a",))
    live = LiveBatch(batch)
    records = [batch.success(n, "x" * 400_000) for n in range(6)]
    await live.settle(*records)
    row = await live.deps.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    response = await LiveResults(live.deps).response(Request(SCOPE, silent), row, ResultQuery())
    assert isinstance(response, StreamingResponse)
    pieces = [data_of(piece) async for piece in response.body_iterator]
    assert b"".join(pieces) == lines_of(*records)
    assert max(map(len, pieces)) < 1024 * 1024 + 401_000
