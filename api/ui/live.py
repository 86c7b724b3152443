"""Streams that update an open page: Server-Sent Events whose data are HTML fragments of the page."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from starlette.responses import Response, StreamingResponse

from batchwright.api.client_limits.long_responses import LIFETIME_SECONDS, ApiShutdown
from batchwright.api.errors import ApiError, rate_limited
from batchwright.api.ui.visit import Visit

POLL_SECONDS = 3.0
MAX_LISTENERS = 500
MAX_LISTENERS_PER_VISITOR = 250
_POLLS_PER_KEEP_ALIVE, _KEEP_ALIVE = 5, b": keep-alive\n\n"
_RETRY = b"\nretry: 5000\n\n"  # milliseconds until a browser connects again
_ENDED = b"event: ended\ndata:\n\n"  # then the browser does not connect again
_HEADERS = {"X-Accel-Buffering": "no"}  # otherwise nginx would hold events back


class Fragment(NamedTuple):
    """A part of a page as HTML. If `is_last` is True, the part will not change again, and its stream ends."""

    html: bytes
    is_last: bool = False


Read = Callable[[], Awaitable[Fragment]]


def _event(fragment: bytes) -> bytes:
    """Return a Server-Sent Event whose data is `fragment` (HTML). Empty lines of `fragment` are left out."""
    lines = (line.strip() for line in fragment.splitlines())
    return b"\n".join(b"data: " + line for line in lines if line)


class _Reading(NamedTuple):
    until: float  # time of the event loop after which it is too old
    fragment: asyncio.Task[Fragment]


class LiveFragments:
    """The streams that send parts of pages to open browser tabs. The parts are rendered at intervals.

    Tabs of the same browser with the same URL share one rendering.
    """

    def __init__(self, stopping: ApiShutdown) -> None:
        self._readings: dict[tuple[str, str, str], _Reading] = {}
        self._listeners = Counter[str]()
        self._ends = set[asyncio.Future[None]]()  # one of each stream
        stopping.on_set(self._end_all)

    async def stream(self, visit: Visit, read: Read, *, seconds: float | None = None) -> Response:
        """Return the response that streams a part of a page to one tab.

        If the response is an error, the browser connects again, with growing pauses.

        Args:
            read: function that renders the part with the rights of the visitor. For the same URL, the
                function must render the same part.
            seconds: time between two renderings; None for POLL_SECONDS.

        Raises:
            ApiError: the API rejects the first request, or this process or the visitor has too many streams
                (429).
        """
        seconds = POLL_SECONDS if seconds is None else seconds
        # A new tab gets a new reading: a shared one may be older than the page that it shows.
        await self.latest(visit, str(visit.request.url), read, seconds, is_new=True)
        of_visitor = self._listeners[visit.identity]
        if self._listeners.total() >= MAX_LISTENERS or of_visitor >= MAX_LISTENERS_PER_VISITOR:
            message = (
                f"Too many pages are open: this process updates {MAX_LISTENERS}, and "
                f"{MAX_LISTENERS_PER_VISITOR} of one visitor. Reload the page instead."
            )
            raise rate_limited(message, MAX_LISTENERS)
        events = self._events(visit, read, seconds)
        return StreamingResponse(events, headers=_HEADERS, media_type="text/event-stream")

    async def latest(
        self, visit: Visit, name: str, read: Read, seconds: float, *, is_new: bool = False
    ) -> Fragment:
        """Return a part of a page. If the part was rendered at most `seconds` ago, return that rendering.
        Otherwise render the part again.

        Calls with the same rights, the same cookie and the same `name` share one rendering. The cookie must
        be the same because forms contain a token that is derived from the cookie.

        Args:
            visit: the browser's request.
            name: name of the part.
            read: function that renders the part.
            seconds: time for which a new rendering is also returned to later calls.
            is_new: True to render the part again, unless a rendering of it is running now.

        Raises:
            ApiError: the API rejects the request.
        """
        key, now = (visit.identity, visit.token, name), asyncio.get_running_loop().time()
        self._readings = {each: found for each, found in self._readings.items() if found.until > now}
        reading = self._readings.get(key)
        if reading is None or (is_new and reading.fragment.done()):
            reading = _Reading(now + seconds, asyncio.ensure_future(read()))
            self._readings[key] = reading
        return await asyncio.shield(reading.fragment)

    def _end_all(self) -> None:
        for end in self._ends:
            end.set_result(None)

    async def _events(self, visit: Visit, read: Read, seconds: float) -> AsyncGenerator[bytes]:
        """Yield a part of the page as an event, and again each time the part has changed.

        The stream ends after `LIFETIME_SECONDS`. The browser then connects again.

        Args:
            visit: the browser's request.
            read: function that renders the part of the page.
            seconds: time between two renderings.
        """
        loop = asyncio.get_running_loop()
        until, end, found, unchanged = loop.time() + LIFETIME_SECONDS, loop.create_future(), Fragment(b""), 0
        self._listeners[visit.identity] += 1
        self._ends.add(end)
        try:
            while not end.done() and not found.is_last and loop.time() < until:
                sent = found.html
                try:
                    found = await self.latest(visit, str(visit.request.url), read, seconds)
                except ApiError as error:
                    if error.status < 500 and error.status != 429:
                        return
                unchanged = unchanged + 1 if found.html == sent else 0
                if found.html != sent or found.is_last:
                    yield _event(found.html) + _RETRY + (_ENDED if found.is_last else b"")
                elif unchanged % _POLLS_PER_KEEP_ALIVE == 0:
                    yield _KEEP_ALIVE
                await asyncio.wait({end}, timeout=seconds)
        finally:
            self._ends.discard(end)
            self._listeners[visit.identity] -= 1
            self._listeners += Counter()  # forgets visitors without streams
