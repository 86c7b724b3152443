"""Streams that keep pages up to date: fragments of a batch's page, and lists that all tabs share."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.datastructures import URL
from starlette.types import Message

from batchwright.api.auth import sessions
from batchwright.api.errors import ApiError
from batchwright.api.middleware import authentication
from batchwright.api.streams import ApiShutdown
from batchwright.api.ui import live
from batchwright.api.ui.live import ListStream, ListStreams
from batchwright.api.ui.visit import Visit
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.fakes.event_stream import listening
from tests.unit.api.routes.test_batch_events import begun, end, settle
from tests.unit.api.ui.browser import Browser


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_the_page_of_a_batch_gets_a_fragment_for_each_change_until_the_end(api: ApiFixture) -> None:
    batch = await begun(api)
    async with listening(api.app, f"/ui/batches/{batch.id}/events") as client:
        assert client.headers["content-type"].startswith("text/event-stream")
        first = await client.next()
        assert b"0 of 9" in first
        await settle(api, batch, 4, failed=1)
        second = await client.next()
        assert b"5 of 9" in second
        assert b"\nid: " in second
        await end(api, batch)
        last = await client.next()
        assert b'class="badge completed"' in last
        assert last.endswith(b"event: ended\ndata:\n\n")
        assert await client.rest() == []
    known = second.rpartition(b"\nid: ")[2].strip().decode()
    async with listening(api.app, f"/ui/batches/{batch.id}/events", last_event_id=known) as client:
        assert b"completed" in await client.next()


async def test_a_list_is_sent_again_when_it_has_changed(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    old = await api.create()
    async with listening(api.app, "/ui/batches/events") as client:
        assert old.id.encode() in await client.next()
        new = await api.create()
        changed = await client.next()
        assert new.id.encode() in changed
        *data, retry = changed.strip().split(b"\n")
        assert all(line.startswith(b"data: ") for line in data)
        assert retry == b"retry: 5000"


async def test_a_refused_list_has_the_status_of_the_error_so_that_browsers_wait() -> None:
    path = "/ui/batches/events"
    async with (
        open_api(auth="trusted_header", scopes_header="X-May") as strict,
        listening(strict.app, path, x_tenant="blue", x_may="write") as client,
    ):
        assert client.status == 403
    async with (
        open_api(auth="api_key") as keyed,
        listening(keyed.app, path, accept="text/event-stream") as client,
    ):
        assert client.status == 401


async def test_all_tabs_with_the_same_list_share_one_reading() -> None:
    streams, reads = ListStreams(ApiShutdown()), list[str]()

    async def fragment() -> bytes:
        reads.append("read")
        return b"<p>rows</p>"

    with streams.feed("blue", "", fragment) as one, streams.feed("blue", "", fragment) as other:
        await one.next
        assert one is other
        assert (one.latest, reads) == (b"<p>rows</p>", ["read"])
        with streams.feed("red", "", fragment) as foreign:
            assert foreign is not one
    await asyncio.gather(one.task, return_exceptions=True)
    assert one.task.cancelled()
    with streams.feed("blue", "", fragment) as fresh:
        assert fresh is not one


async def test_a_feed_survives_an_outage_and_ends_when_the_api_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    answers: list[Exception | bytes] = [ApiError(503, "down"), b"rows", ApiError(403, "revoked")]

    async def fragment() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with ListStreams(ApiShutdown()).feed("blue", "", fragment) as feed:
        await feed.next
        assert feed.latest == b"rows"
        await asyncio.gather(feed.task, return_exceptions=True)
        assert (feed.is_closed, answers) == (True, [])


async def test_too_many_open_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_LISTENERS", 1)
    streams = ListStreams(ApiShutdown())

    async def fragment() -> bytes:
        return b"rows"

    refused = pytest.raises(ApiError, match="Too many pages are open")
    with streams.feed("blue", "", fragment), refused, streams.feed("blue", "", fragment):
        pass
    with streams.feed("blue", "", fragment):
        pass


async def test_one_visitor_cannot_take_the_places_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_LISTENERS_PER_VISITOR", 1)
    streams = ListStreams(ApiShutdown())

    async def fragment() -> bytes:
        return b"rows"

    refused = pytest.raises(ApiError, match="1 of one visitor")
    with streams.feed("blue", "x=1", fragment):
        with refused, streams.feed("blue", "x=2", fragment):
            pass
        with streams.feed("red", "", fragment):
            pass


async def test_a_tab_that_is_closed_before_the_first_answer_leaves_its_place() -> None:
    streams = ListStreams(ApiShutdown())

    async def fragment() -> bytes:
        raise ApiError(503, "down")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        return None

    visit = cast(Visit, SimpleNamespace(identity="blue", request=SimpleNamespace(url=URL("/ui"))))
    async with asyncio.timeout(30):
        await ListStream(streams, visit, fragment)({"type": "http"}, receive, send)


async def test_a_stopping_process_ends_the_streams_of_lists() -> None:
    stopping = ApiShutdown()
    streams = ListStreams(stopping)

    async def fragment() -> bytes:
        return b"rows"

    with streams.feed("blue", "", fragment) as feed:
        await feed.next
        stopping.set()
        await asyncio.gather(feed.task, return_exceptions=True)
        assert feed.is_closed


async def test_streams_of_pages_end_when_the_key_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(sessions, "RECENT_SECONDS", 0)
    async with open_api(auth="api_key") as api:
        key = await create_key(api.database, "blue")
        await Browser(api).sign_in(key)
        cookie = f"batchwright_ui={api.http.cookies['batchwright_ui']}"
        api.http.headers["Authorization"] = f"Bearer {key.text}"
        batch = await begun(api, "blue")
        one, several = f"/ui/batches/{batch.id}/events", "/ui/batches/events"
        async with (
            listening(api.app, one, cookie=cookie) as stream,
            listening(api.app, several, cookie=cookie) as list_stream,
        ):
            assert b"0 of 9" in await stream.next()
            assert batch.id.encode() in await list_stream.next()
            await api.database.api_keys.revoke(key.prefix, datetime.now(UTC))
            assert await stream.rest() == []
            assert await list_stream.rest() == []
