"""Responses that pass on a backend's answer. They end early if the client disconnects or stops reading."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response
from batchwright.api.services.calls.watched_connections import stopping_error

EVENTS = "text/event-stream"
_UNBUFFERED = {"x-accel-buffering": "no"}  # otherwise nginx would hold events back
_MAX_SEND_SECONDS = 60.0  # a client that does not read for so long counts as disconnected
_PIECE_BYTES = 64 * 1024  # a whole answer is sent in such pieces, each when the client has room
_Result = TypeVar("_Result")


class EventRelay(Response):
    """A response that sends the events of a backend until the answer or the connection ends.

    If the process stops before the answer ends, the last event is an error.
    """

    def __init__(
        self,
        relay: Callable[[Send], Coroutine[None, None, None]],
        connection: asyncio.Task[None],
        opened: AsyncExitStack,
    ) -> None:
        """Create the response.

        Args:
            relay: function that sends the events of the backend to the client.
            connection: task that ends when the client disconnects.
            opened: exit stack with the resources of the request. It is closed when the response has ended.
        """
        self._relay, self._connection, self._opened = relay, connection, opened
        super().__init__(headers=_UNBUFFERED, media_type=EVENTS)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            with suppress(ClientDisconnect):
                await _send_head(send, self)
                try:
                    await while_open(self._connection, self._relay(send))
                except ApiError as error:
                    await pass_on(send, error_event(error), is_last=True)


class HeldResponse(Response):
    """A response that keeps the resources of its request, such as its bytes in memory, until the whole
    response was sent or the client has disconnected.
    """

    def __init__(self, shown: Response, opened: AsyncExitStack) -> None:
        self._opened = opened
        super().__init__(bytes(shown.body), shown.status_code, shown.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            body, size = memoryview(self.body), len(self.body)
            with suppress(ClientDisconnect):
                await _send_head(send, self)
                for start in range(0, size, _PIECE_BYTES):
                    end = start + _PIECE_BYTES
                    await pass_on(send, bytes(body[start:end]), is_last=end >= size)


async def while_open(connection: asyncio.Task[None], work: Coroutine[None, None, _Result]) -> _Result | None:
    """Wait for `work` and return its result. If the client disconnects first, cancel `work` and return None.

    Args:
        connection: task that ends when the client disconnects, and is cancelled when the process stops.
        work: coroutine that answers the client's request.

    Raises:
        ApiError: the process stops before `work` has ended (503).
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task, connection], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if connection.cancelled():
            raise stopping_error()
        return None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def error_event(error: ApiError) -> bytes:
    """Return the bytes that end an event stream with an error."""
    return b"data: %b\n\n" % bytes(error_response(error).body)


async def pass_on(send: Send, lines: bytes, *, is_last: bool = False) -> None:
    await _send_soon(send, {"type": "http.response.body", "body": lines, "more_body": not is_last})


async def _send_head(send: Send, response: Response) -> None:
    """Send the status and headers of a response.

    Raises:
        ClientDisconnect: the client has read nothing for `_MAX_SEND_SECONDS`, but stays connected.
    """
    head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await _send_soon(send, head)


async def _send_soon(send: Send, message: Message) -> None:
    """Send a message to the client.

    Raises:
        ClientDisconnect: the client has read nothing for `_MAX_SEND_SECONDS`, but keeps the connection open.
            If the client has not read earlier responses on this connection, even the head of a response can
            fail.
    """
    try:
        async with asyncio.timeout(_MAX_SEND_SECONDS):
            await send(message)
    except TimeoutError:
        raise ClientDisconnect from None
