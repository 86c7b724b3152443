"""Streams that keep a page up to date: Server-Sent Events whose data are fragments of the page."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response, rate_limited
from batchwright.api.streams import LIFETIME_SECONDS, ApiShutdown
from batchwright.api.ui.visit import Visit
from batchwright.contracts.objects.openai import BatchObject

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
MAX_LISTENERS = 500
MAX_LISTENERS_PER_VISITOR = 250
_KEEP_ALIVE, _KEEP_ALIVE_SECONDS = b": keep-alive\n\n", 15.0
_RETRY = b"\nretry: 5000\n\n"  # milliseconds until a browser connects again
_ENDED = b"event: ended\ndata:\n\n"  # then the browser does not connect again
_DATA = b"data: "
_HEADERS = {"X-Accel-Buffering": "no"}  # otherwise nginx would hold events back
Fragment = Callable[[], Awaitable[bytes]]


class BatchStream(Response):
    """The events of one batch. Each batch object of the API's stream becomes a fragment of the page."""

    def __init__(self, visit: Visit, path: str, fragment: Callable[[BatchObject], Awaitable[bytes]]) -> None:
        super().__init__()
        self._visit, self._path, self._fragment = visit, path, fragment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = self._visit.request.headers.get("last-event-id")
        headers = {} if known is None else {"last-event-id": known}
        api = self._visit.api

        async def rendered(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": await self._rendered(message.get("body", b""))}
            await send(message)

        await api.forward(api.scope("GET", self._path, headers=headers), receive, rendered)

    async def _rendered(self, event: bytes) -> bytes:
        """Return an event of the API with a fragment as its data. Anything else is returned unchanged."""
        fields = event.split(b"\n")
        data = next((field for field in fields if field.startswith(_DATA)), None)
        if data is None:
            return event
        batch = BatchObject.model_validate_json(data.removeprefix(_DATA))
        kept = [field for field in fields if field.startswith((b"id:", b"retry:"))]
        is_last = batch.status.is_terminal and not batch.x_batchwright.files_pending
        return b"\n".join([encode_data(await self._fragment(batch)), *kept, b"", _ENDED if is_last else b""])


def encode_data(fragment: bytes) -> bytes:
    """Return the data lines of an event. Empty lines of the fragment are left out."""
    lines = (line.strip() for line in fragment.splitlines())
    return b"\n".join(_DATA + line for line in lines if line)


class _Feed:
    """A list that is read again and again for all tabs that show it.

    `next` is done when `latest` changes, or when the feed is closed. `refusal` is the error of the API that
    has closed it.
    """

    def __init__(self, fragment: Fragment) -> None:
        self._fragment = fragment
        self.latest, self.is_closed, self.listeners = b"", False, 0
        self.refusal: ApiError | None = None
        self.next = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Read the list every `POLL_SECONDS`, until the API refuses it or the task is cancelled."""
        try:
            while True:
                try:
                    fragment = await self._fragment()
                except ApiError as error:
                    if error.status < 500 and error.status != 429:
                        raise
                    logger.warning("a watched list cannot be read", extra={"error": str(error)})
                else:
                    if fragment != self.latest:
                        self.latest = fragment
                        self._wake()
                await asyncio.sleep(POLL_SECONDS)
        except ApiError as error:
            self.refusal = error
        finally:
            self.is_closed = True
            self._wake()

    def _wake(self) -> None:
        self.next.set_result(None)
        self.next = asyncio.get_running_loop().create_future()


class ListStreams:
    """Feeds of lists. The tabs of one visitor that show the same list share one feed."""

    def __init__(self, stopping: ApiShutdown) -> None:
        self._feeds: dict[tuple[str, str], _Feed] = {}
        self._listeners = Counter[str]()
        self._stopping = stopping
        stopping.on_set(self._close)

    @contextmanager
    def feed(self, visitor: str, list_shown: str, fragment: Fragment) -> Generator[_Feed]:
        """Context manager that yields the feed of a visitor for a list.

        The first listener makes the feed from `fragment`.

        Raises:
            ApiError: this process or the visitor has too many listeners (429).
        """
        if self._listeners.total() >= MAX_LISTENERS or self._listeners[visitor] >= MAX_LISTENERS_PER_VISITOR:
            message = (
                f"Too many pages are open: this process updates {MAX_LISTENERS}, and "
                f"{MAX_LISTENERS_PER_VISITOR} of one visitor. Reload the page instead."
            )
            raise rate_limited(message, MAX_LISTENERS)
        key = visitor, list_shown
        feed = self._feeds.get(key)
        if feed is None or feed.is_closed:
            feed = self._feeds[key] = _Feed(fragment)
        feed.listeners += 1
        self._listeners[visitor] += 1
        try:
            yield feed
        finally:
            feed.listeners -= 1
            self._listeners[visitor] -= 1
            self._listeners += Counter()  # forgets visitors without listeners
            if not feed.listeners:
                feed.task.cancel()
                if self._feeds.get(key) is feed:
                    del self._feeds[key]

    def _close(self) -> None:
        for feed in self._feeds.values():
            feed.task.cancel()


class ListStream(Response):
    """The stream of one tab that shows a list."""

    media_type = "text/event-stream"

    def __init__(self, streams: ListStreams, visit: Visit, fragment: Fragment) -> None:
        """Create the stream.

        Args:
            fragment: reads the list with the rights of the visitor, and renders it.
        """
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._open = partial(streams.feed, visit.identity, visit.request.url.query, fragment)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open() as feed:
            disconnected = asyncio.create_task(_disconnected(receive))
            try:
                if not feed.latest and not feed.is_closed:
                    await asyncio.wait({feed.next, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if feed.refusal is not None:  # after an error status, the browser waits longer and longer
                    await error_response(feed.refusal)(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for event in self._events(feed, disconnected):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            finally:
                disconnected.cancel()
                await asyncio.gather(disconnected, return_exceptions=True)

    async def _events(self, feed: _Feed, disconnected: asyncio.Task[None]) -> AsyncGenerator[bytes]:
        """Yield the list when it has changed. The browser connects again after `LIFETIME_SECONDS`."""
        loop, sent = asyncio.get_running_loop(), b""
        until = loop.time() + LIFETIME_SECONDS
        while not (feed.is_closed or disconnected.done() or loop.time() > until):
            if feed.latest != sent:
                sent = feed.latest
                yield encode_data(sent) + _RETRY
                continue
            changed = {feed.next, disconnected}
            done, _ = await asyncio.wait(
                changed, timeout=_KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                yield _KEEP_ALIVE


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
