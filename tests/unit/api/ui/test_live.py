"""Streams that keep pages up to date: fragments of a batch's page, and lists that all tabs share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.datastructures import URL
from starlette.responses import StreamingResponse

from batchwright.api.auth import sessions
from batchwright.api.client_limits.long_responses import ApiShutdown
from batchwright.api.errors import ApiError
from batchwright.api.middleware import authentication
from batchwright.api.ui import live
from batchwright.api.ui.live import Fragment, LiveFragments, Read
from batchwright.api.ui.visit import Visit
from tests.fakes.api import ApiFixture, open_api
from tests.fakes.api_keys import create_key
from tests.fakes.event_stream import listening
from tests.unit.api.routes.batch_events.running_batch import begun, end, settle
from tests.unit.api.ui.browser import Browser


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


async def test_the_page_of_a_batch_gets_a_fragment_for_each_change_until_the_end(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    batch = await begun(api)
    async with listening(api.app, f"/ui/batches/{batch.id}/events") as client:
        assert client.headers["content-type"].startswith("text/event-stream")
        first = await client.next()
        assert b"0 of 9" in first
        await settle(api, batch, 4, failed=1)
        while b"5 of 9" not in await client.next():
            pass
        await end(api, batch)
        *_, last = await client.rest()
        assert b'class="badge completed"' in last
        assert last.endswith(b"event: ended\ndata:\n\n")


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


class Tab:
    """A browser tab that shows a list, and the event stream that it reads. No network is used."""

    def __init__(self, streams: LiveFragments, read: Read, visitor: str = "blue", cookie: str = "x") -> None:
        request = SimpleNamespace(url=URL("/ui"))
        self._visit = cast(Visit, SimpleNamespace(identity=visitor, token=cookie, request=request))
        self._streams, self._read = streams, read

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[AsyncGenerator[bytes]]:
        response = await self._streams.stream(self._visit, self._read)
        async with aclosing(
            cast(AsyncGenerator[bytes], cast(StreamingResponse, response).body_iterator)
        ) as events:
            yield events


async def test_all_tabs_with_the_same_list_share_one_reading() -> None:
    streams, reads = LiveFragments(ApiShutdown()), list[str]()

    async def read() -> Fragment:
        reads.append("read")
        return Fragment(b"<p>rows</p>")

    tab = Tab(streams, read)
    async with tab.open() as one, tab.open() as other:
        reads.clear()  # each tab has read when it was opened
        assert [await anext(one), await anext(other)] == [b"data: <p>rows</p>\nretry: 5000\n\n"] * 2
        assert reads == []


@pytest.mark.parametrize(("visitor", "cookie"), [("red", "x"), ("blue", "y")])
async def test_tabs_with_other_rights_or_of_another_browser_share_nothing(visitor: str, cookie: str) -> None:
    """A gateway may send requests of two tenants with the same cookie. Forms contain a token that depends on
    the cookie.
    """
    streams = LiveFragments(ApiShutdown())

    async def foreign() -> Fragment:
        return Fragment(b"of others")

    async with Tab(streams, rows).open() as own, Tab(streams, foreign, visitor, cookie).open() as others:
        assert (await anext(own)).startswith(b"data: rows")
        assert (await anext(others)).startswith(b"data: of others")


async def test_tabs_that_are_opened_at_once_share_one_reading_and_a_later_tab_gets_a_new_one() -> None:
    streams, reads, begin = LiveFragments(ApiShutdown()), list[str](), asyncio.Event()

    async def read() -> Fragment:
        await begin.wait()
        reads.append("read")
        return Fragment(b"%d" % len(reads))

    async def first_event() -> bytes:
        async with Tab(streams, read).open() as events:
            return await anext(events)

    async with asyncio.TaskGroup() as opened:
        tabs = [opened.create_task(first_event()) for _ in range(3)]
        await asyncio.sleep(0)
        begin.set()
    assert {tab.result()[:7] for tab in tabs} == {b"data: 1"}
    assert (await first_event())[:7] == b"data: 2"  # the page may show what has changed since the first


async def test_a_list_survives_an_outage_and_its_stream_ends_when_the_api_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    answers: list[Exception | bytes] = [
        b"old",
        b"old",
        ApiError(503, "down"),
        b"new",
        ApiError(403, "revoked"),
    ]

    async def read() -> Fragment:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Fragment(answer)

    async with Tab(LiveFragments(ApiShutdown()), read).open() as events:
        found = [event.partition(b"\n")[0] async for event in events]
    assert (found, answers) == ([b"data: old", b"data: new"], [])


async def test_an_unchanged_list_keeps_its_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0)
    async with Tab(LiveFragments(ApiShutdown()), rows).open() as events:
        await anext(events)
        assert await anext(events) == b": keep-alive\n\n"


async def rows() -> Fragment:
    return Fragment(b"rows")


@pytest.mark.parametrize("limit", ["MAX_LISTENERS", "MAX_LISTENERS_PER_VISITOR"])
async def test_too_many_open_lists_are_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(live, limit, 1)
    streams = LiveFragments(ApiShutdown())
    tab, foreign = Tab(streams, rows), Tab(streams, rows, "red")
    async with tab.open() as events:
        await anext(events)
        with pytest.raises(ApiError, match="Too many pages are open"):
            async with tab.open():
                pass
        if limit == "MAX_LISTENERS_PER_VISITOR":
            async with foreign.open() as others:
                await anext(others)
    async with tab.open() as events:
        await anext(events)


async def test_a_tab_that_is_closed_leaves_its_place(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_LISTENERS", 1)
    for _ in range(3):
        async with listening(api.app, "/ui/batches/events") as client:
            assert client.status == 200
            await client.next()


async def test_a_stopping_process_ends_the_streams_of_lists() -> None:
    stopping = ApiShutdown()
    async with Tab(LiveFragments(stopping), rows).open() as events:
        await anext(events)
        stopping.set()
        assert [event async for event in events] == []


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
            for rest in (await stream.rest(), await list_stream.rest()):
                assert b"event: ended" not in b"".join(rest)
