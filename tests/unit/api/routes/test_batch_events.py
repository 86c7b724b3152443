"""The event stream of a batch: its events, its end, and its limits."""

import asyncio
import json
from collections.abc import AsyncGenerator, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.auth import key_cache
from batchwright.api.dependencies import now
from batchwright.api.long_responses import LIFETIME_SECONDS
from batchwright.api.middleware import authentication
from batchwright.api.services.batches import progress_events as batch_events
from batchwright.api.services.batches.progress_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    ErrorCount,
    ErrorExample,
    ModelCounts,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import BatchOutcome, SliceProgress
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.rules.ids import new_batch_id
from tests.clocks import skip_time
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api
from tests.fakes.api_keys import create_key
from tests.fakes.event_stream import EventStreamClient, listening

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLIER = "0" * 24  # the id of no event


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


def refusals(api: ApiFixture) -> float:
    """Return how many requests were refused because of a wrong key."""
    name = "batchwright_api_refusals_total"
    return api.metrics.registry.get_sample_value(name, {"reason": "wrong_key"}) or 0


def listen(
    api: ApiFixture, batch: BatchObject, **headers: str
) -> AbstractAsyncContextManager[EventStreamClient]:
    return listening(api.app, f"/v1/batches/{batch.id}/x/events", **headers)


async def begun(api: ApiFixture, tenant: str = "default") -> BatchObject:
    """Create a batch in progress with nine lines, and return it."""
    batch = await api.create(tenant)
    models = [ModelCounts(model="llama", lines=9)]
    await api.database.batches.start(tenant, batch.id, total=9, models=models, at=START)
    return batch


async def settle(api: ApiFixture, batch: BatchObject, completed: int, failed: int = 0) -> None:
    """Report settled lines of the batch as a worker does, then poll once."""
    example = ErrorExample(custom_id="c", message="why")
    errors = [ErrorCount(code="http_400", count=failed, example=example)] if failed else []
    progress = SliceProgress(
        tenant="default",
        batch_id=batch.id,
        model="llama",
        number=0,
        generation=0,
        attempt=1,
        completed=completed,
        failed=failed,
        errors=errors,
    )
    await api.database.progress.record([progress])
    await api.events.poll()


async def end(api: ApiFixture, batch: BatchObject) -> None:
    """End the batch, and poll once."""
    outcome = BatchOutcome(status=BatchStatus.COMPLETED, completed=9, failed=0, usage=Usage())
    await api.database.batches.finish("default", batch.id, outcome, START)
    await api.events.poll()


def fields(event: bytes) -> dict[str, str]:
    """Return the fields of an encoded event."""
    assert event.endswith(b"\n\n")
    lines = event.decode().removesuffix("\n\n").split("\n")
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}


def batch_in(event: bytes) -> BatchObject:
    return BatchObject.model_validate_json(fields(event)["data"])


async def test_the_first_event_is_the_batch_as_it_is(api: ApiFixture) -> None:
    batch = await begun(api)
    shown = await api.http.get(f"/v1/batches/{batch.id}")
    async with listen(api, batch) as client:
        event = fields(await client.next())
    assert (client.status, client.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert client.headers["cache-control"] == "no-store"
    assert "content-length" not in client.headers
    assert event["event"] == "batch.progress"
    assert json.loads(event["data"]) == shown.json()


async def test_each_change_is_an_event_until_the_batch_has_ended(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        await client.next()
        await settle(api, batch, 3, failed=2)
        changed = batch_in(await client.next())
        await end(api, batch)
        [last] = await client.rest()
    assert (changed.request_counts.completed, changed.request_counts.failed) == (3, 2)
    assert [each.code for each in changed.x_batchwright.errors_summary] == ["http_400"]
    assert fields(last)["event"] == "batch.completed"
    assert batch_in(last).status == "completed"


async def test_a_reason_to_wait_is_an_event(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        first = batch_in(await client.next())
        await api.http.post(f"/v1/batches/{batch.id}/x/pause")
        await api.events.poll()
        paused = batch_in(await client.next())
    assert (first.x_batchwright.paused, paused.x_batchwright.paused) == (False, True)
    assert "paused" in [each.reason for each in paused.waiting]


async def test_an_unchanged_batch_sends_nothing_but_comments(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        await client.next()
        for _ in range(3):
            await api.events.poll()
        skip_time(KEEP_ALIVE_SECONDS)
        assert await client.next() == KEEP_ALIVE
        await settle(api, batch, 1)
        assert batch_in(await client.next()).request_counts.completed == 1


async def test_a_forecast_is_an_event_when_it_is_made_but_not_while_it_counts_down(api: ApiFixture) -> None:
    batch = await begun(api)

    async def forecast(age: timedelta, p50: float) -> None:
        made = BatchForecast(
            made_at=now() - age,  # whole seconds, as the API reads them
            lines_per_second=1,
            lines_ahead=0,
            p50_seconds=p50,
            p90_seconds=p50,
            window=WindowFit.FITS,
        )
        rows = [ForecastRow("default", batch.id, made)]
        api.database.rows.forecasts.clear()
        await api.database.forecasts.publish(rows, made.made_at)

    await forecast(timedelta(seconds=9), 1000)
    before = batch_events.encode_event(await got(api, batch))
    moved = await got(api, batch)
    shown = moved.x_batchwright.forecast
    assert shown is not None
    shown.remaining_seconds_p50 -= 1
    assert batch_events.encode_event(moved).id == before.id
    async with listen(api, batch) as client:
        await client.next()
        await forecast(timedelta(), 500)
        await api.events.poll()
        fresh = batch_in(await client.next()).forecast
        await forecast(timedelta(minutes=5), 500)  # no control worker has made another
        await api.events.poll()
        stale = batch_in(await client.next()).forecast
    assert fresh is not None
    assert fresh.remaining_seconds_p50 in range(490, 501)
    assert stale is None


async def got(api: ApiFixture, batch: BatchObject) -> BatchObject:
    return BatchObject.model_validate_json((await api.http.get(f"/v1/batches/{batch.id}")).content)


async def test_a_client_goes_on_after_its_last_event(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        known = fields(await client.next())["id"]
    async with listen(api, batch, last_event_id=known) as client:
        await settle(api, batch, 1)
        assert batch_in(await client.next()).request_counts.completed == 1
    async with listen(api, batch, last_event_id=known) as client:
        assert batch_in(await client.next()).request_counts.completed == 1


async def test_no_text_of_a_batch_ends_the_line_of_its_event(api: ApiFixture) -> None:
    text = "".join(chr(code) for code in (*range(1, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029))
    batch = await api.create(metadata={"a": text})
    event = batch_events.encode_event(await got(api, batch)).encoded.decode()
    assert [line.partition(":")[0] for line in event.splitlines()] == ["event", "retry", "data", "id", ""]
    assert batch_in(event.encode()).metadata == {"a": text}


async def test_event_ids_are_the_same_in_every_process(api: ApiFixture) -> None:
    batch = await begun(api)
    ids = {batch_events.encode_event(await got(api, batch)).id for _ in range(2)}
    async with listen(api, batch) as client:
        assert ids == {fields(await client.next())["id"]}


async def test_a_client_that_has_the_last_event_is_told_not_to_connect_again(api: ApiFixture) -> None:
    batch = await begun(api)
    await end(api, batch)
    async with listen(api, batch, last_event_id=EARLIER) as client:
        [last] = await client.rest()
    path = f"/v1/batches/{batch.id}/x/events"
    again = await api.http.get(path, headers={"Last-Event-ID": fields(last)["id"]})
    assert (again.status_code, again.content) == (204, b"")


@pytest.mark.parametrize("wrong", ["1", "x" * 24, EARLIER.replace("0", "A"), EARLIER + "0", "\xe9" * 24])
async def test_a_malformed_event_id_is_refused(wrong: str, api: ApiFixture) -> None:
    batch = await begun(api)
    path, header = f"/v1/batches/{batch.id}/x/events", {b"Last-Event-ID": wrong.encode("latin-1")}
    answer = await api.http.get(path, headers=header)
    assert (answer.status_code, error_of(answer).param) == (400, "Last-Event-ID")


async def test_an_empty_event_id_counts_as_none(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch, last_event_id="") as client:
        assert batch_in(await client.next()).id == batch.id


async def test_unknown_and_foreign_batches_are_not_found(api: ApiFixture) -> None:
    foreign = await begun(api, tenant="other")
    async with listen(api, foreign, x_tenant="other") as owner:
        await owner.next()
        for batch_id in (foreign.id, new_batch_id(), "x"):
            answer = await api.http.get(f"/v1/batches/{batch_id}/x/events")
            assert answer.status_code == 404


async def test_head_returns_the_headers_of_a_stream(api: ApiFixture) -> None:
    batch = await begun(api)
    answer = await api.http.head(f"/v1/batches/{batch.id}/x/events")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


class CountedReads:
    """Snapshots of the fake database. It records the keys of each call."""

    def __init__(self, api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[set[BatchKey]] = []
        self._read = api.database.batch_snapshots.read
        monkeypatch.setattr(api.database.batch_snapshots, "read", self._counted)

    async def _counted(self, keys: Collection[BatchKey], at: datetime) -> dict[BatchKey, BatchSnapshot]:
        self.calls.append(set(keys))
        return await self._read(keys, at)


async def test_one_query_reads_all_batches_and_listeners_share_the_event(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [await begun(api) for _ in range(3)]
    reads = CountedReads(api, monkeypatch)
    async with AsyncExitStack() as streams:
        clients = [
            await streams.enter_async_context(listen(api, batch)) for batch in batches for _ in range(20)
        ]
        for client in clients:
            await client.next()
        assert reads.calls == []
        await settle(api, batches[0], 5)
        assert reads.calls == [{BatchKey("default", batch.id) for batch in batches}]
        assert len({id(await client.next()) for client in clients[:20]}) == 1


async def test_no_query_is_sent_without_listeners(api: ApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await begun(api)
    reads = CountedReads(api, monkeypatch)
    async with listen(api, batch) as client:
        await client.next()
        client.disconnect()
        assert await client.rest() == []
    await api.events.poll()
    assert reads.calls == []


async def test_a_client_that_reads_slowly_gets_the_latest_event_only(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        await client.next()
        client.stop_reading()
        for completed in range(1, 6):
            await settle(api, batch, completed)
            await asyncio.sleep(0)  # lets the stream take the event
        client.go_on_reading()
        await end(api, batch)
        counts = [batch_in(event).request_counts.completed for event in await client.rest()]
    assert counts[-1] == 9
    assert len(counts) <= 3  # the one that was being sent, the latest when it was sent, and the last
    assert 2 not in counts[1:]


async def test_a_tenant_and_the_process_have_a_limit_of_listeners(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS_PER_TENANT", 2)
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 3)
    mine, theirs = await begun(api), await begun(api, tenant="other")

    async def refusal(batch: BatchObject, tenant: str) -> str:
        path = f"/v1/batches/{batch.id}/x/events"
        answer = await api.http.get(path, headers={"X-Tenant": tenant})
        assert (answer.status_code, error_of(answer).code) == (429, "rate_limit_exceeded")
        assert answer.headers["retry-after"]
        return error_of(answer).message

    async with AsyncExitStack() as streams:
        for _ in range(2):
            await streams.enter_async_context(listen(api, mine))
        assert "a tenant may have 2" in await refusal(mine, "default")
        await streams.enter_async_context(listen(api, theirs, x_tenant="other"))
        assert "this process serves 3" in await refusal(theirs, "other")
        assert "batchwright_api_event_streams 3.0" in api.metrics.render().decode()
    assert "batchwright_api_event_streams 0.0" in api.metrics.render().decode()
    async with listen(api, mine) as client:
        assert client.status == 200


async def test_a_stream_ends_after_its_lifetime(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        await client.next()
        skip_time(LIFETIME_SECONDS)
        assert await client.rest() == []


async def test_the_stop_of_the_process_ends_streams_at_once() -> None:
    async with open_own_api() as api:
        batch = await begun(api)
        async with listen(api, batch) as client:
            await client.next()
            api.stopping.set()
            assert await client.rest() == []
        refused = await api.http.get(f"/v1/batches/{batch.id}/x/events")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


async def test_the_poller_continues_after_an_outage_of_the_database(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    batch = await begun(api)
    rows = api.database.rows
    poller = asyncio.create_task(api.events.run())
    async with listen(api, batch) as client:
        await client.next()
        rows.failing = DatabaseUnavailable("refused")
        while "watched batches cannot be read" not in caplog.text:
            skip_time(batch_events.POLL_SECONDS)
            await asyncio.sleep(0)
        rows.failing = None
        event = asyncio.create_task(client.next())
        await api.database.batches.request_cancel("default", batch.id, START)
        while not event.done():
            skip_time(batch_events.POLL_SECONDS)
            await asyncio.sleep(0)
    poller.cancel()
    assert batch_in(event.result()).status == "cancelling"
    assert caplog.text.count("watched batches cannot be read") == 1


@pytest.mark.parametrize(
    ("seconds", "error", "pause"),
    [
        (0.4, None, 19 * 0.4),
        (2, None, batch_events.MAX_PAUSE_SECONDS),
        (30, DatabaseUnavailable("timeout"), batch_events.POLL_SECONDS),
    ],
    ids=["slow", "very slow", "failed"],
)
async def test_a_slow_poll_is_followed_by_a_longer_pause_unless_it_failed(
    seconds: float, error: Exception | None, pause: float, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = asyncio.get_running_loop()
    moment, step = clock.time(), 0.25
    polls: list[tuple[float, float]] = []

    async def slow() -> None:
        nonlocal moment
        began, moment = moment, moment + seconds
        polls.append((began, moment))
        if error is not None:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(api.events, "poll", slow)
        patched.setattr(clock, "time", lambda: moment)
        poller = asyncio.create_task(api.events.run())
        while len(polls) < 2:
            moment += step
            await asyncio.sleep(0)
        poller.cancel()
    assert polls[1][0] - polls[0][1] == pytest.approx(pause + 2 * step, abs=2 * step)


async def test_streams_end_when_their_key_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(key_cache, "CACHE_SECONDS", 0)
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "blue")
        api.http.headers["Authorization"] = f"Bearer {key.text}"
        batch = await begun(api, "blue")
        path, authorization = f"/v1/batches/{batch.id}/x/events", f"Bearer {key.text}"
        async with listening(api.app, path, authorization=authorization) as client:
            assert batch.id.encode() in await client.next()
            before = refusals(api)
            await api.database.api_keys.revoke(key.prefix, datetime.now(UTC))
            assert await client.rest() == []
        assert refusals(api) == before + 1


async def test_a_stream_outlasts_a_database_that_cannot_check_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(key_cache, "CACHE_SECONDS", 0)
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "default")
        api.http.headers["Authorization"] = f"Bearer {key.text}"
        batch = await begun(api)
        path, authorization = f"/v1/batches/{batch.id}/x/events", f"Bearer {key.text}"
        async with listening(api.app, path, authorization=authorization) as client:
            assert batch.id.encode() in await client.next()
            api.database.rows.failing = DatabaseUnavailable("away")
            lookups = api.database.rows.key_lookups
            while api.database.rows.key_lookups < lookups + 2:  # noqa: ASYNC110 - no event tells of lookups
                await asyncio.sleep(0)
            api.database.rows.failing = None
            await settle(api, batch, 4)
            assert b'"completed":4' in await client.next()
