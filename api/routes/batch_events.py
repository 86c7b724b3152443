"""/v1/batches/{id}/x/events: the progress of a batch as Server-Sent Events."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response
from starlette.types import Receive, Scope, Send

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import invalid_value
from batchwright.api.middleware.head_method import is_head
from batchwright.api.openapi import EVENT_STREAM_RESPONSES, pattern_schema
from batchwright.api.services.batches.progress_events import BatchEvents, Listener

_EVENT_ID = re.compile(r"[0-9a-f]{24}", re.ASCII)
_MEDIA_TYPE = "text/event-stream"
_UNBUFFERED = {"x-accel-buffering": "no"}  # otherwise nginx would hold events back


class EventStreamResponse(Response):
    """A response that sends the events of a batch, until the batch ends or the connection closes."""

    media_type = _MEDIA_TYPE

    def __init__(self, open_listener: Callable[[], AbstractContextManager[Listener]]) -> None:
        self._open_listener = open_listener
        super().__init__(headers=_UNBUFFERED)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open_listener() as listener:
            connection = asyncio.create_task(_close_on_disconnect(receive, listener))
            try:
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
                async for piece in listener.pieces():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                connection.cancel()
                await asyncio.gather(connection, return_exceptions=True)


async def last_event_id_parameter(
    last_event_id: Annotated[
        str | None,
        Header(
            description="id of the latest event that the client has, and does not need again; may be empty"
        ),
        pattern_schema(r"^([0-9a-f]{24})?$"),
    ] = None,
) -> None:
    """Do nothing. Routes declare this dependency only so that `/openapi.json` describes the header."""


class BatchEventRoutes:
    def __init__(self, deps: ApiDependencies, events: BatchEvents) -> None:
        self._settings, self._events = deps.settings, events

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["Batches"])
        router.add_api_route(
            "/{batch_id}/x/events",
            self.events,
            response_class=Response,
            responses=EVENT_STREAM_RESPONSES,
            dependencies=[Depends(last_event_id_parameter)],
        )
        return router

    async def events(self, request: Request, batch_id: str) -> Response:
        """Stream a batch as Server-Sent Events.

        Each time the batch changes, an event with the whole batch object is sent. The stream ends when the
        batch has ended.
        """
        topic = await self._events.topic(tenant_of(request, self._settings), batch_id)
        known = _last_event_id(request)
        if topic.event.is_last and topic.event.id == known:
            return Response(status_code=204)  # after this status, browsers do not connect again
        if is_head(request):
            return Response(media_type=_MEDIA_TYPE, headers=_UNBUFFERED)
        return EventStreamResponse(lambda: self._events.listener(topic, known))


def _last_event_id(request: Request) -> str | None:
    """Return the id in the header `Last-Event-ID`; None if the header is missing or empty.

    The header contains the id of the latest event that the client has received.

    Raises:
        ApiError: the value of the header is not the id of an event (400).
    """
    id = request.headers.get("last-event-id")
    if not id:  # a browser that has received no event may send an empty header
        return None
    if _EVENT_ID.fullmatch(id) is None:
        raise invalid_value("Last-Event-ID", "Invalid Last-Event-ID header: expected the id of an event.")
    return id


async def _close_on_disconnect(receive: Receive, listener: Listener) -> None:
    """Wait until the client disconnects. Then close `listener`, the event stream of this client.

    If `receive` fails, or if this task is cancelled, the event stream is closed, too.
    """
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        listener.close()
