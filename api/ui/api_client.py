"""A client that calls the API's own routes in the same process, for the pages at `/ui`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import orjson
from anyio import create_memory_object_stream
from pydantic import BaseModel, ValidationError
from starlette import datastructures
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.auth.caller import SCOPE_SESSION_KEY, SessionKey
from batchwright.api.errors import ApiError
from batchwright.api.schemas.file_create import SCOPE_OBSERVER, ContentObserver
from batchwright.contracts.api_objects.openai import ErrorObject

# Headers that are about the browser's request, or would authenticate it in another way than its session.
_OWN_HEADERS = frozenset(
    b"accept-encoding content-encoding content-length content-type transfer-encoding if-match if-none-match "
    b"if-range range idempotency-key last-event-id authorization api-key x-api-key cookie".split()
)
_OF_THE_PAGE = ("route", "endpoint", "path_params")
Query = Mapping[str, str | None]
Headers = Mapping[str, str]
_NONE: Headers = {}
_T = TypeVar("_T", bound=BaseModel)


class ApiResponse(NamedTuple):
    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces])


class ApiClient:
    """A client that calls the API with the rights of the person who visits the pages at `/ui`.

    The methods that return an object raise ApiError if the API responds with an error.
    """

    def __init__(self, app: ASGIApp, visit: Scope, session: SessionKey | None) -> None:
        """Create the client.

        Args:
            app: the routes of the API, including the middleware that authenticates callers.
            visit: ASGI scope of the browser's request. Its headers, such as those of a gateway, are passed to
                the API.
            session: function that returns the API key with which the visitor has signed in. Pass None if the
                visitor has not signed in.
        """
        self._app, self._visit, self._session = app, visit, session

    async def get(self, path: str, kind: type[_T], query: Query = _NONE) -> _T:
        return kind.model_validate_json(await self.send("GET", path, query))

    async def post(self, path: str, kind: type[_T], body: object, headers: Headers = _NONE) -> _T:
        return kind.model_validate_json(await self.send("POST", path, body=body, headers=headers))

    async def send(
        self, method: str, path: str, query: Query = _NONE, body: object = None, headers: Headers = _NONE
    ) -> bytes:
        """Send a request, and return the body of the response.

        Args:
            body: object to send as JSON; None for no body.

        Raises:
            ApiError: the API responds with an error.
        """
        content = b"" if body is None else orjson.dumps(body)
        sent = {"content-type": "application/json", **headers}
        async with self._responding(self._scope(method, path, query, sent), _receive(content)) as response:
            return await _checked(response)

    def forwarded(self, path: str, names: Collection[str]) -> Response:
        """Send a GET request to the API, and return the API's response unchanged.

        Args:
            path: path of the API.
            names: names of the headers to pass on from the browser's request to the API.
        """
        sent = datastructures.Headers(scope=self._visit)
        headers = {name: sent[name] for name in names if name in sent}
        return _Forwarded(self._app, self._scope("GET", path, headers=headers))

    async def upload(self, receive: Receive, kind: type[_T], observer: ContentObserver | None) -> _T:
        """Pass a file that the browser uploads to the API, and return the object in the API's response.

        Args:
            receive: ASGI function that returns the upload form as it arrives.
            kind: type of the returned object.
            observer: function that is called with each piece of the file's content; None for no observer.

        Raises:
            ApiError: the API responds with an error.
        """
        form = {"content-type": datastructures.Headers(scope=self._visit).get("content-type", "")}
        scope = {**self._scope("POST", "/v1/files", headers=form), SCOPE_OBSERVER: observer}
        async with self._responding(scope, receive) as response:
            return kind.model_validate_json(await _checked(response))

    @asynccontextmanager
    async def open(
        self, path: str, query: Query = _NONE, headers: Headers = _NONE
    ) -> AsyncGenerator[ApiResponse]:
        """Context manager that sends a GET request and yields the response.

        You may leave the block before the body is complete.

        Raises:
            ApiError: the API responds with an error.
        """
        async with self._responding(self._scope("GET", path, query, headers), _receive(b"")) as response:
            if response.status >= HTTPStatus.BAD_REQUEST:
                await _checked(response)
            yield response

    def _scope(self, method: str, path: str, query: Query = _NONE, headers: Headers = _NONE) -> Scope:
        """Return the ASGI scope for a request to the API. Query parameters that are empty are left out."""
        kept = [(name, value) for name, value in self._visit["headers"] if name not in _OWN_HEADERS]
        own = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return {
            **{name: value for name, value in self._visit.items() if name not in _OF_THE_PAGE},
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode({name: text for name, text in query.items() if text}).encode(),
            "headers": [*kept, *own],
            SCOPE_SESSION_KEY: self._session,
        }

    @asynccontextmanager
    async def _responding(self, scope: Scope, receive: Receive) -> AsyncGenerator[ApiResponse]:
        """Context manager that calls the API and yields its response. At the end of the block, the call is
        cancelled.
        """
        outgoing, incoming = create_memory_object_stream[Message](1)

        async def respond() -> None:
            with outgoing:
                await self._app(scope, receive, outgoing.send)

        call = asyncio.create_task(respond())

        async def pieces() -> AsyncGenerator[bytes]:
            async for message in incoming:
                yield message.get("body", b"")
            await call  # raises the error of a response that was cut

        try:
            start = await anext(incoming, None)
            if start is None:
                await call
                raise RuntimeError("the API has sent no response")
            async with aclosing(pieces()) as body:
                yield ApiResponse(start["status"], datastructures.Headers(raw=start["headers"]), body)
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            incoming.close()


class _Forwarded(Response):
    def __init__(self, app: ASGIApp, request: Scope) -> None:
        super().__init__()
        self._app, self._request = app, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(self._request, receive, send)


def _receive(content: bytes) -> Receive:
    """Return an ASGI `receive` function for a request with the body `content`. It never reports a
    disconnect.
    """
    messages = iter([{"type": "http.request", "body": content}])

    async def receive() -> Message:
        return next(messages, None) or await asyncio.Future[Message]()

    return receive


async def _checked(response: ApiResponse) -> bytes:
    """Return the body of a response if it is successful.

    Raises:
        ApiError: the response is an error.
    """
    body = await response.body()
    if response.status < HTTPStatus.BAD_REQUEST:
        return body
    try:
        error = ErrorObject.model_validate_json(body).error
    except ValidationError:
        raise ApiError(response.status, body.decode(errors="replace")[:500]) from None
    raise ApiError(response.status, error.message, code=error.code, param=error.param)
