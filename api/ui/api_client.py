"""Client of the API's own routes, in the same process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.auth.caller import SCOPE_SESSION_KEY, SessionKey
from batchwright.api.errors import ApiError
from batchwright.contracts.objects.openai import ErrorObject

# Headers that are about the browser's request, or would authenticate it in another way than its session.
_OWN_HEADERS = frozenset(
    {
        *("accept-encoding", "content-encoding", "content-length", "content-type", "transfer-encoding"),
        *("if-match", "if-none-match", "if-range", "range", "idempotency-key", "last-event-id"),
        *("authorization", "api-key", "x-api-key", "cookie"),
    }
)
Query = Mapping[str, str | None]
_NO_QUERY: Query = {}
_T = TypeVar("_T", bound=BaseModel)


class ApiResponse(NamedTuple):
    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces])


class ApiClient:
    """Calls routes of the API with the rights of one visitor of the pages.

    All methods except `scope` and `open` raise ApiError if the API responds with an error.
    """

    def __init__(self, app: ASGIApp, visit: Scope, session: SessionKey | None) -> None:
        """Create the client.

        Args:
            app: the routes of the API, behind the middleware that authenticates their callers.
            visit: ASGI scope of the browser's request. Its headers, such as the headers of a gateway, are
                sent on.
            session: reads the API key of the visitor's session; None if sessions are not used.
        """
        self._app, self._visit, self._session = app, visit, session

    def scope(
        self, method: str, path: str, query: Query = _NO_QUERY, headers: Mapping[str, str] | None = None
    ) -> Scope:
        """Return the ASGI scope of a request to the API. Empty query parameters are left out."""
        kept = [
            (name, value)
            for name, value in self._visit["headers"]
            if name.decode("latin-1") not in _OWN_HEADERS
        ]
        own = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        dropped = ("route", "endpoint", "path_params")
        return {
            **{name: value for name, value in self._visit.items() if name not in dropped},
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode({name: text for name, text in query.items() if text}).encode(),
            "headers": [*kept, *own],
            SCOPE_SESSION_KEY: self._session,
        }

    async def get(self, path: str, kind: type[_T], query: Query = _NO_QUERY) -> _T:
        return kind.model_validate_json(await self._call("GET", path, query))

    async def post(
        self, path: str, kind: type[_T], body: object = None, headers: Mapping[str, str] | None = None
    ) -> _T:
        content = b"" if body is None else orjson.dumps(body)
        sent = {"content-type": "application/json", **(headers or {})}
        return kind.model_validate_json(await self._call("POST", path, headers=sent, content=content))

    async def act(self, method: str, path: str, query: Query = _NO_QUERY) -> None:
        """Send a request without a body, and ignore the body of the response."""
        await self._call(method, path, query)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the API respond to the browser itself. `scope` is a result of the method `scope`."""
        await self._app(scope, receive, send)

    async def upload(self, receive: Receive, content_type: str, kind: type[_T]) -> _T:
        """Send on the form of a file, whose body the browser sends."""
        scope = self.scope("POST", "/v1/files", headers={"content-type": content_type})
        async with self._responding(scope, receive) as response:
            return kind.model_validate_json(await _checked(response))

    @asynccontextmanager
    async def open(
        self, path: str, query: Query = _NO_QUERY, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[ApiResponse]:
        """Context manager that yields the response to a GET, whose body need not be read to its end.

        Raises:
            ApiError: the API responds with an error.
        """
        async with self._responding(self.scope("GET", path, query, headers), _receive(b"")) as response:
            if response.status >= HTTPStatus.BAD_REQUEST:
                await _checked(response)
            yield response

    async def _call(
        self,
        method: str,
        path: str,
        query: Query = _NO_QUERY,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> bytes:
        scope = self.scope(method, path, query, headers)
        async with self._responding(scope, _receive(content)) as response:
            return await _checked(response)

    @asynccontextmanager
    async def _responding(self, scope: Scope, receive: Receive) -> AsyncGenerator[ApiResponse]:
        """Call the API, yield its response, and end the call at the end of the `with` block."""
        messages = asyncio.Queue[Message](maxsize=1)

        async def respond() -> None:
            await self._app(scope, receive, messages.put)

        call = asyncio.create_task(respond())
        try:
            start = await _next(messages, call)
            async with aclosing(_pieces(messages, call)) as pieces:
                yield ApiResponse(start["status"], Headers(raw=start["headers"]), pieces)
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)


async def _next(messages: asyncio.Queue[Message], call: asyncio.Task[None]) -> Message:
    """Return the next message of the response. If the call failed instead, raise its exception."""
    getting = asyncio.ensure_future(messages.get())
    await asyncio.wait({getting, call}, return_when=asyncio.FIRST_COMPLETED)
    if not getting.done() and messages.empty():
        getting.cancel()
        call.result()
        raise RuntimeError("the API has sent no response")
    return await getting


async def _pieces(messages: asyncio.Queue[Message], call: asyncio.Task[None]) -> AsyncGenerator[bytes]:
    more = True
    while more:
        message = await _next(messages, call)
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _receive(content: bytes) -> Receive:
    """Return an ASGI `receive` function for a request with this body, whose client does not disconnect."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    return receive


async def _checked(response: ApiResponse) -> bytes:
    """Return the body of a successful response.

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
