"""The event stream of a batch: its events, their ids, and its end."""

import json
from datetime import timedelta

import pytest

from batchwright.api.dependencies import ApiDependencies, now
from batchwright.api.services.batches import progress_events as batch_events
from batchwright.api.services.batches.progress_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_names import CONTROL_QUEUE, IO_QUEUE, inference_queue
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    WindowFit,
)
from batchwright.database.tables.operations.forecasts import ForecastRow
from batchwright.rules.ids import new_batch_id
from batchwright.rules.worker_stats import polled_queue_stats
from tests.clocks import skip_time
from tests.fakes.api import ApiFixture, error_of
from tests.unit.api.routes.batch_events.running_batch import batch_in, begun, end, fields, listen, settle

EARLIER = "0" * 24  # the id of no event


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


async def test_a_worker_that_begins_to_poll_is_an_event_within_seconds(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listen(api, batch) as client:
        before = batch_in(await client.next())
        await api.events.poll()
        queues = [CONTROL_QUEUE, IO_QUEUE, inference_queue("llama")]
        await api.database.workers.record_heartbeat("one:1", polled_queue_stats(queues))
        skip_time(5)
        await api.events.poll()
        after = batch_in(await client.next())
    assert before.waiting
    assert after.waiting == []


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


async def test_the_time_of_the_start_is_an_event(api: ApiFixture) -> None:
    """Nothing is stored when a batch starts at its start time. Only the clock shows that it no
    longer waits.
    """
    start = now() + timedelta(days=1)
    batch = await api.create(x_batchwright={"start_at": start.isoformat()})
    parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
    moment = start - timedelta(seconds=1)
    events = batch_events.BatchEvents(ApiDependencies(*parts, recent_seconds=0, clock=lambda: moment))
    with events.listener(await events.topic("default", batch.id), None) as listener:
        pieces = listener.pieces()
        before = batch_in(await anext(pieces))
        await events.poll()
        moment = start
        await events.poll()
        after = batch_in(await anext(pieces))
    assert [each.reason for each in before.waiting] == ["scheduled"]
    assert "scheduled" not in [each.reason for each in after.waiting]
