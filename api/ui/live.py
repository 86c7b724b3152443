"""Streams that keep a page up to date: Server-Sent Events whose data are fragments of the page."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from starlette.responses import Response, StreamingResponse

from batchwright.api.errors import ApiError, rate_limited
from batchwright.api.streams import LIFETIME_SECONDS, ApiShutdown
from batchwright.api.ui.visit import Visit
from batchwright.contracts.objects.openai import BatchObject

POLL_SECONDS = 3.0
MAX_LISTENERS = 500
MAX_LISTENERS_PER_VISITOR = 250
_POLLS_PER_KEEP_ALIVE, _KEEP_ALIVE = 5, b": keep-alive\n\n"
_RETRY = b"\nretry: 5000\n\n"  # milliseconds until a browser connects again
_ENDED = b"event: ended\ndata:\n\n"  # then the browser does not connect again
_DATA = b"data: "
_HEADERS = {"X-Accel-Buffering": "no"}  # otherwise nginx would hold events back
Fragment = Callable[[], Awaitable[bytes]]


async def batch_event(event: bytes, fragment: Callable[[BatchObject], Awaitable[bytes]]) -> bytes:
    """Replace the data of a batch event from the API by HTML, which `fragment` renders from the batch.

    Other events are returned unchanged.
    """
    fields = event.split(b"\n")
    data = next((field for field in fields if field.startswith(_DATA)), None)
    if data is None:
        return event
    batch = BatchObject.model_validate_json(data.removeprefix(_DATA))
    kept = [field for field in fields if field.startswith((b"id:", b"retry:"))]
    is_last = batch.status.is_terminal and not batch.x_batchwright.files_pending
    return b"\n".join([encode_data(await fragment(batch)), *kept, b"", _ENDED if is_last else b""])


def encode_data(fragment: bytes) -> bytes:
    """Encode a part of a page as the data lines of an event. Empty lines are left out."""
    lines = (line.strip() for line in fragment.splitlines())
    return b"\n".join(_DATA + line for line in lines if line)


class _Reading(NamedTuple):
    until: float  # time of the event loop after which it is too old
    fragment: asyncio.Task[bytes]


class LiveFragments:
    """Streams parts of pages to open browser tabs, and renders these parts again at intervals.

    Tabs of the same visitor with the same URL share the rendered part.
    """

    def __init__(self, stopping: ApiShutdown) -> None:
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._listeners = Counter[str]()
        self._ends = set[asyncio.Future[None]]()  # one of each stream
        stopping.on_set(self._end_all)

    async def stream(self, visit: Visit, fragment: Fragment, *, seconds: float | None = None) -> Response:
        """Return the response that streams a part of a page to one tab.

        Args:
            fragment: function that renders the part with the rights of the visitor. It must be the same for
                all tabs with the same URL.
            seconds: time between two renderings; None for POLL_SECONDS.

        Raises:
            ApiError: the API rejects the first request, or this process or the visitor has too many streams
                (429). After an error, the browser connects again, with growing pauses.
        """
        key, seconds = (visit.identity, str(visit.request.url)), POLL_SECONDS if seconds is None else seconds
        await self.latest(key, fragment, seconds)
        if (
            self._listeners.total() >= MAX_LISTENERS
            or self._listeners[visit.identity] >= MAX_LISTENERS_PER_VISITOR
        ):
            message = (
                f"Too many pages are open: this process updates {MAX_LISTENERS}, and "
                f"{MAX_LISTENERS_PER_VISITOR} of one visitor. Reload the page instead."
            )
            raise rate_limited(message, MAX_LISTENERS)
        events = self._events(key, fragment, seconds)
        return StreamingResponse(events, headers=_HEADERS, media_type="text/event-stream")

    async def latest(self, key: tuple[str, str], fragment: Fragment, seconds: float) -> bytes:
        """Return a part of a page that was rendered at most `seconds` ago.

        Concurrent callers share one rendering.

        Raises:
            ApiError: the API rejects the request.
        """
        now = asyncio.get_running_loop().time()
        self._readings = {each: found for each, found in self._readings.items() if found.until > now}
        if key not in self._readings:
            self._readings[key] = _Reading(now + seconds, asyncio.ensure_future(fragment()))
        return await asyncio.shield(self._readings[key].fragment)

    def _end_all(self) -> None:
        for end in self._ends:
            end.set_result(None)

    async def _events(
        self, key: tuple[str, str], fragment: Fragment, seconds: float
    ) -> AsyncGenerator[bytes]:
        """Yield the part of the page each time it has changed. End after `LIFETIME_SECONDS`.

        The browser then connects again.
        """
        visitor, loop = key[0], asyncio.get_running_loop()
        until, end, sent, unchanged = loop.time() + LIFETIME_SECONDS, loop.create_future(), b"", 0
        self._listeners[visitor] += 1
        self._ends.add(end)
        try:
            while not end.done() and loop.time() < until:
                found = sent
                try:
                    found = await self.latest(key, fragment, seconds)
                except ApiError as error:
                    if error.status < 500 and error.status != 429:
                        return
                unchanged = unchanged + 1 if found == sent else 0
                if found != sent:
                    sent = found
                    yield encode_data(found) + _RETRY
                elif unchanged % _POLLS_PER_KEEP_ALIVE == 0:
                    yield _KEEP_ALIVE
                await asyncio.wait({end}, timeout=seconds)
        finally:
            self._ends.discard(end)
            self._listeners[visitor] -= 1
            self._listeners += Counter()  # forgets visitors without streams
