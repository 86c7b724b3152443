"""Requests over aiohttp behind httpx's transport interface, with the errors kept apart (R20).

never sent          httpx.ConnectError, httpx.ConnectTimeout
sent, no answer     httpx.ReadTimeout; httpx.ReadError: the connection ended before the answer did
not an answer       httpx.RemoteProtocolError: what came is not HTTP
"""

from collections.abc import AsyncIterator, Iterator
from functools import lru_cache

import aiohttp
import httpx
from yarl import URL

from batchwright.settings import Settings

# Below the 5 s after which common servers close an idle connection: a POST that meets the closing is lost.
_KEEPALIVE_SECONDS = 4.0
_ERRORS = (aiohttp.ClientError, TimeoutError, ConnectionError)
_UNPACKED = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


def open_transport(settings: Settings) -> httpx.AsyncBaseTransport:
    """The engine of `settings.http_engine`, without retries, redirects or cookies."""
    connections = settings.global_in_flight + 8  # room for the registry's questions
    if settings.http_engine == "aiohttp":
        return AiohttpTransport(connections=connections)
    limits = httpx.Limits(
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )
    return httpx.AsyncHTTPTransport(limits=limits, retries=0)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """`connections` bounds open sockets; timeouts come from each request's `timeout` extension."""

    def __init__(self, *, connections: int) -> None:
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = await self._open().request(
                request.method,
                _parsed(str(request.url)),
                data=_content(request),
                headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in _sent(request)],
                allow_redirects=False,
                timeout=_timeout(request),
            )
        except _ERRORS as error:
            raise _as_httpx(error, request) from error
        headers = [(name, value) for name, value in answer.raw_headers if name.lower() not in _UNPACKED]
        return httpx.Response(answer.status, headers=headers, stream=_Body(request, answer), request=request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """Made at the first request, inside the loop it serves."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections, ttl_dns_cache=60, keepalive_timeout=_KEEPALIVE_SECONDS
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent",),
            )
        return self._session


class _Body(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, answer: aiohttp.ClientResponse) -> None:
        self._request, self._answer = request, answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.content.iter_any():
                yield chunk
        except _ERRORS as error:
            raise _as_httpx(error, self._request) from error

    async def aclose(self) -> None:
        """Gives the connection back where the answer was read whole; else it is closed."""
        if self._answer.content.is_eof():
            self._answer.release()
        else:
            self._answer.close()


@lru_cache(maxsize=256)
def _parsed(url: str) -> URL:
    return URL(url)


def _timeout(request: httpx.Request) -> aiohttp.ClientTimeout:
    given: dict[str, float | None] = request.extensions.get("timeout", {})
    connect = given.get("connect")
    return aiohttp.ClientTimeout(connect=connect, sock_connect=connect, sock_read=given.get("read"))


def _content(request: httpx.Request) -> bytes | None:
    """The request's body, which is whole in memory: requests are never streamed."""
    content = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else request.content
    return content or None


def _sent(request: httpx.Request) -> Iterator[tuple[bytes, bytes]]:
    """aiohttp makes the host's header itself."""
    return (header for header in request.headers.raw if header[0] not in (b"host", b"Host"))


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """aiohttp's errors, most specific first, as httpx's."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            kind = httpx.ConnectTimeout
        case TimeoutError():
            kind = httpx.ReadTimeout
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            kind = httpx.ConnectError
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | ConnectionError():
            kind = httpx.ReadError
        case _:
            kind = httpx.RemoteProtocolError
    return kind(_text(error), request=request)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
