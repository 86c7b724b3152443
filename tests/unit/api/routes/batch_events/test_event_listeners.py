"""Listeners to the event streams of batches: how they share queries, their limits, and how they end."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.auth import key_cache
from batchwright.api.client_limits.long_responses import LIFETIME_SECONDS
from batchwright.api.middleware import authentication
from batchwright.api.services.batches import progress_events as batch_events
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot
from tests.clocks import skip_time
from tests.fakes.api import ApiFixture, error_of, open_api, open_own_api
from tests.fakes.api_keys import create_key
from tests.fakes.event_stream import listening
from tests.unit.api.routes.batch_events.running_batch import (
    START,
    batch_in,
    begun,
    end,
    listen,
    refusals,
    settle,
)


class CountedReads:
    """A wrapper of the fake table of batch snapshots. `calls` has the batches of each query."""

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


async def test_the_streams_of_a_batch_that_was_deleted_end(api: ApiFixture) -> None:
    deleted, other = await begun(api), await begun(api)
    async with listen(api, deleted) as client, listen(api, other) as other_client:
        await client.next()
        await other_client.next()
        del api.database.rows.batches["default", deleted.id]
        await settle(api, other, 1)
        assert await client.rest() == []
        assert batch_in(await other_client.next()).request_counts.completed == 1


async def test_a_deleted_batch_is_not_found_even_while_the_stream_of_another_client_has_not_ended(
    api: ApiFixture,
) -> None:
    batch = await begun(api)
    async with listen(api, batch) as slow:
        await slow.next()
        slow.stop_reading()
        await settle(api, batch, 1)
        await asyncio.sleep(0)  # lets the stream take the event
        del api.database.rows.batches["default", batch.id]
        await api.events.poll()
        async with listen(api, batch) as client:
            assert client.status == 404
        slow.go_on_reading()
        assert len(await slow.rest()) <= 1


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


async def test_a_client_that_comes_after_the_end_gets_the_present_batch_even_if_another_still_reads(
    api: ApiFixture,
) -> None:
    batch, ends = await begun(api), api.database.batch_ends
    until = datetime.now(UTC) + timedelta(hours=1)
    async with listen(api, batch) as slow:
        await slow.next()
        slow.stop_reading()
        await ends.end_without_files("default", batch.id, BatchStatus.EXPIRED, [], START, files_until=until)
        await api.events.poll()
        await asyncio.sleep(0)  # lets the stream take the last event
        await ends.abandon_files("default", batch.id, [])
        async with listen(api, batch) as client:
            [event] = await client.rest()
        slow.go_on_reading()
        [earlier] = await slow.rest()
    pending = [batch_in(each).x_batchwright.files_pending for each in (earlier, event)]
    assert pending == [True, False]


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


async def test_the_poller_continues_after_an_outage_of_the_database_and_logs_each_outage_once(
    api: ApiFixture, caplog: pytest.LogCaptureFixture
) -> None:
    logged = "watched batches cannot be read"

    async def fail_until_logged(times: int) -> None:
        rows.failing = DatabaseUnavailable("refused")
        while caplog.text.count(logged) < times:
            skip_time(batch_events.POLL_SECONDS)
            await asyncio.sleep(0)
        rows.failing = None

    batch = await begun(api)
    rows = api.database.rows
    poller = asyncio.create_task(api.events.run())
    async with listen(api, batch) as client:
        await client.next()
        await fail_until_logged(1)
        event = asyncio.create_task(client.next())
        await api.database.batches.request_cancel("default", batch.id, START)
        while not event.done():
            skip_time(batch_events.POLL_SECONDS)
            await asyncio.sleep(0)
        assert caplog.text.count(logged) == 1
        await fail_until_logged(2)
    poller.cancel()
    assert batch_in(event.result()).status == "cancelling"


async def test_streams_end_if_a_poll_raises_an_unexpected_error(api: ApiFixture) -> None:
    batch = await begun(api)
    poller = asyncio.create_task(api.events.run())
    async with listen(api, batch) as client:
        await client.next()
        api.database.rows.failing = ValueError("odd")
        while not poller.done():
            skip_time(batch_events.POLL_SECONDS)
            await asyncio.sleep(0)
        assert await client.rest() == []
    with pytest.raises(ValueError, match="odd"):
        await poller


async def test_an_event_that_cannot_be_made_ends_only_the_streams_of_its_batch(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, sound = await begun(api), await begun(api)
    encode = batch_events.encode_event

    def fail_for_one(batch: BatchObject) -> batch_events.Event:
        if batch.id == odd.id:
            raise ValueError("odd")
        return encode(batch)

    async with listen(api, odd) as ended, listen(api, sound) as client:
        await ended.next()
        await client.next()
        monkeypatch.setattr(batch_events, "encode_event", fail_for_one)
        await settle(api, odd, 4)
        await settle(api, sound, 5)
        assert batch_in(await client.next()).request_counts.completed == 5
        assert await ended.rest() == []


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
            while api.database.rows.key_lookups < lookups + 2:
                await asyncio.sleep(0)
            api.database.rows.failing = None
            await settle(api, batch, 4)
            assert b'"completed":4' in await client.next()
